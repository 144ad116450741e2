"""FFCV: `jpeg` writes all photos as JPEGs in their size; `recipe` as its ImageNet recipe does, of
at most 500 pixels, half of them raw. The JPEGs are its own, of quality 90. It resizes by area."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image
from work import AREA, ASPECT, MEAN, SIZE, STD, Settings, listed

_FIELDS: dict[str, dict[str, Any]] = {
    "jpeg": {"write_mode": "jpg", "jpeg_quality": 90},
    "recipe": {
        "write_mode": "proportion",
        "max_resolution": 500,
        "compress_probability": 0.5,
        "jpeg_quality": 90,
    },
}


@dataclass(frozen=True)
class _Photos:
    """Rows as its writer takes them."""

    files: list[tuple[Path, int]]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        file, label = self.files[row]
        return Image.open(file).convert("RGB"), label


def prepare(photos: Path, target: Path, variant: str) -> None:
    """One file."""
    fields = {"image": RGBImageField(**_FIELDS[variant]), "label": IntField()}
    writer = DatasetWriter(str(target / "photos.beton"), fields, num_workers=2)
    writer.from_indexed_dataset(_Photos(listed(photos)))


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """Threads that run compiled operations; the file stays in the page cache."""
    image = [
        RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=AREA, ratio=ASPECT),
        RandomHorizontalFlip(),
        NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32),
        ToTensor(),
        ToTorchImage(),
    ]
    loader: Iterable[Any] = Loader(
        str(data / "photos.beton"),
        batch_size=settings.batch,
        num_workers=settings.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return loader
