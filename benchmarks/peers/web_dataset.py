"""WebDataset: tars of the files, a shuffle buffer, batches made by the workers of a WebLoader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webdataset as wds  # type: ignore[import-untyped,import-not-found,unused-ignore]
from vision import crop_and_normalize, decoded
from work import Settings, listed

ROWS_A_TAR = 500
BUFFER = 1000


def prepare(photos: Path, target: Path, variant: str) -> None:
    """Tars of 500 photos, which come in the order of their names within classes, dealt out."""
    files = listed(photos)
    tars = -(-len(files) // ROWS_A_TAR)
    dealt = [item for first in range(tars) for item in files[first::tars]]
    with wds.ShardWriter(str(target / "%06d.tar"), maxcount=ROWS_A_TAR, verbose=0) as out:
        for row, (file, label) in enumerate(dealt):
            out.write({"__key__": f"{row:08}", "jpg": file.read_bytes(), "cls": label})


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """Tars in random order, dealt to the workers, and rows shuffled in a buffer."""
    tars = sorted(str(path) for path in data.glob("*.tar"))
    crop = crop_and_normalize()
    dataset = (
        wds.WebDataset(tars, shardshuffle=len(tars), detshuffle=False)
        .shuffle(BUFFER)
        .to_tuple("jpg", "cls")
        .map_tuple(lambda jpeg: crop(decoded(jpeg)), int)
        .batched(settings.batch)
    )
    loader: Iterable[Any] = wds.WebLoader(
        dataset, batch_size=None, num_workers=settings.threads, persistent_workers=True
    )
    return loader
