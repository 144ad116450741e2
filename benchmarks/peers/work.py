"""The work that every loader does, and how a runner is asked for it.

A runner is a module of this folder with two functions, `prepare` and `open_loader`, as `Runner`
says. It runs in its loader's own environment, so it imports nothing of fastio.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SIZE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# What RandomResizedCrop draws from: the part of the image's area, and width over height.
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Settings:
    """How a loader is opened.

    `variant` is one of the ways that the runner knows; `threads` counts worker processes or
    threads, whichever the loader has.
    """

    variant: str
    batch: int
    threads: int


class Runner(Protocol):
    """What a runner's module has."""

    def prepare(self, photos: Path, target: Path, variant: str) -> None:
        """Writes the class folders of `photos` to the folder `target`, which is empty, in the
        loader's own format; writes nothing where it reads photos as they are."""

    def open_loader(self, data: Path, settings: Settings) -> Iterable[Any]:
        """What is iterated once an epoch: (images float32 (N, 3, 224, 224), labels) in random
        order, all rows. `data` is the folder that prepare() wrote, or the photos."""


def listed(photos: Path) -> list[tuple[Path, int]]:
    """The photos of class folders with their labels, in the order of their names."""
    folders = sorted(path for path in photos.iterdir() if path.is_dir())
    return [
        (file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())
    ]


@dataclass(frozen=True)
class Pairs:
    """A loader of dicts as one of tuples."""

    loader: Iterable[dict[str, Any]]
    names: tuple[str, str] = ("image", "label")

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        image, label = self.names
        for batch in self.loader:
            yield batch[image], batch[label]
