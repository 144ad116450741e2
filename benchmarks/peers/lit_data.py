"""LitData: chunks of 64 MB with the JPEGs as they are, which its serializer decodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import litdata
from PIL import Image
from vision import crop_and_normalize
from work import Pairs, Settings, listed


class _Photos(litdata.StreamingDataset):  # type: ignore[misc]  # it has no types
    """Samples {"image": float32 (3, 224, 224), "label"}."""

    def __init__(self, data: Path) -> None:
        super().__init__(str(data), shuffle=True)
        self._crop = crop_and_normalize()

    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        return {"image": self._crop(row["image"]), "label": row["label"]}


def _row(item: tuple[Path, int]) -> dict[str, Any]:
    file, label = item
    return {"image": Image.open(file), "label": label}


def prepare(photos: Path, target: Path, variant: str) -> None:
    """An optimized dataset, of files as Pillow opens them: their bytes are kept."""
    litdata.optimize(
        fn=_row, inputs=listed(photos), output_dir=str(target), num_workers=2, chunk_bytes="64MB"
    )


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """Its own loader."""
    return Pairs(
        litdata.StreamingDataLoader(
            _Photos(data),
            batch_size=settings.batch,
            num_workers=settings.threads,
            persistent_workers=True,
        )
    )
