"""fastio: `folder` reads the photos as they are, `jpeg` and `blocks` are packed datasets.

`cache` is the folder with a cache in which all photos have been recoded while epochs ran.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from work import AREA, ASPECT, MEAN, SIZE, STD, Settings

import fastio


def prepare(photos: Path, target: Path, variant: str) -> None:
    """A packed dataset, with the default codebook."""
    if variant == "jpeg":
        fastio.pack(photos, target, codec="jpeg")
    elif variant == "blocks":
        fastio.pack(photos, target, codec="blocks")
    elif variant == "cache":
        (target / "photos").symlink_to(photos.resolve())
        with open_loader(target, Settings(variant, 64, 2), pack="always") as loader:
            for _ in loader:
                pass
            while loader.stats().recoded < len(loader.dataset):
                time.sleep(0.1)


def open_loader(
    data: Path, settings: Settings, pack: Literal["idle", "always"] = "idle"
) -> fastio.Loader[Any]:
    """The loader of README.md."""
    cached = settings.variant == "cache"
    return fastio.Loader(
        (data / "photos").resolve() if cached else data,
        settings.batch,
        shuffle=True,
        num_workers=settings.threads,
        transforms=[
            fastio.RandomResizedCrop(SIZE, scale=AREA, ratio=ASPECT),
            fastio.RandomHorizontalFlip(),
            fastio.Normalize(MEAN, STD),
        ],
        device="cpu",
        cache=fastio.Cache(data / "cache", pack=pack) if cached else None,
    )
