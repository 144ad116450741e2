"""DALI's CPU pipeline of its ResNet-50 example: decoded within the crop, triangular filter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from work import AREA, ASPECT, MEAN, SIZE, STD, Settings


@pipeline_def  # type: ignore[untyped-decorator]
def _pipeline(folder: str) -> Any:
    jpegs, labels = fn.readers.file(file_root=folder, random_shuffle=True, name="Reader")
    images = fn.decoders.image_random_crop(
        jpegs, device="cpu", random_area=list(AREA), random_aspect_ratio=list(ASPECT)
    )
    images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=fn.random.coin_flip(),
    )
    return images, labels


@dataclass(frozen=True)
class _Epochs:
    """Its iterator, whose batches are lists of one dict."""

    iterator: Any

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for (batch,) in self.iterator:
            yield batch["data"], batch["label"]


def prepare(photos: Path, target: Path, variant: str) -> None:
    """The photos are read as they are."""


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """A pipeline without a GPU."""
    pipeline = _pipeline(
        str(data),
        batch_size=settings.batch,
        num_threads=settings.threads,
        device_id=None,
    )
    iterator = DALIClassificationIterator(
        pipeline, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )
    return _Epochs(iterator)
