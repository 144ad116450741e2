"""fastio: `folder` reads the photos as they are, `jpeg` and `blocks` are packed datasets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from work import AREA, ASPECT, MEAN, SIZE, STD, Settings

import fastio


def prepare(photos: Path, target: Path, variant: str) -> None:
    """A packed dataset, with the default codebook."""
    if variant == "jpeg":
        fastio.pack(photos, target, codec="jpeg")
    elif variant == "blocks":
        fastio.pack(photos, target, codec="blocks")


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """The loader of README.md."""
    return fastio.Loader(
        data,
        settings.batch,
        shuffle=True,
        num_workers=settings.threads,
        transforms=[
            fastio.RandomResizedCrop(SIZE, scale=AREA, ratio=ASPECT),
            fastio.RandomHorizontalFlip(),
            fastio.Normalize(MEAN, STD),
        ],
        device="cpu",
    )
