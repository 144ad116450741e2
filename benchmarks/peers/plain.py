"""torch's DataLoader over torchvision's ImageFolder: `pillow` opens and crops with Pillow, as
torch's ImageNet example does; `tensors` decodes and crops with torchvision."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from vision import crop_and_normalize, decoded_file
from work import Settings


def prepare(photos: Path, target: Path, variant: str) -> None:
    """The photos are read as they are."""


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """A loader with worker processes that live as long as it."""
    if settings.variant == "pillow":
        dataset = ImageFolder(data, crop_and_normalize(pillow=True))
    else:
        dataset = ImageFolder(data, crop_and_normalize(), loader=decoded_file)
    return DataLoader(
        dataset,
        settings.batch,
        shuffle=True,
        num_workers=settings.threads,
        persistent_workers=True,
    )
