"""MosaicML Streaming: MDS shards of the files' bytes, its default shuffle, torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader
from vision import crop_and_normalize, decoded
from work import Settings, listed


class _Photos(StreamingDataset):  # type: ignore[misc]  # it has no types
    """Samples (float32 (3, 224, 224), label)."""

    def __init__(self, data: Path, batch: int) -> None:
        super().__init__(local=str(data), shuffle=True, batch_size=batch)
        self._crop = crop_and_normalize()

    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        return self._crop(decoded(row["image"])), row["label"]


def prepare(photos: Path, target: Path, variant: str) -> None:
    """Shards of the default size, 64 MiB."""
    with MDSWriter(out=str(target), columns={"image": "bytes", "label": "int"}) as out:
        for file, label in listed(photos):
            out.write({"image": file.read_bytes(), "label": label})


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """The dataset gives each worker its rows; what a killed run left in shared memory goes."""
    clean_stale_shared_memory()
    return DataLoader(
        _Photos(data, settings.batch),
        settings.batch,
        num_workers=settings.threads,
        persistent_workers=True,
    )
