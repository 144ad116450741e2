"""Folders of small photos for tests of recoded images, and epochs until they are recoded."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio import Cache, Loader
from fastio.recoded import images
from tests.pictures import cmyk_jpeg, jpeg, oriented_jpeg, png
from tests.support import until

ROWS = 24
PIECE_BYTES = 20_000  # of these photos, a few rows
CROPS = [fastio.RandomResizedCrop(16), fastio.RandomHorizontalFlip()]


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks of a few rows, so that a small folder has several."""
    monkeypatch.setattr(images, "_PIECE_BYTES", PIECE_BYTES)


def photos(root: Path, rows: int = ROWS, odd: bool = False) -> Path:
    """Writes a folder of photos in two classes; `odd` adds images that stay as they are."""
    for row in range(rows):
        path = root / f"class-{row % 2}" / f"{row:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(100 + row, 130, seed=row))
    if odd:
        (root / "class-0" / "x.jpg").write_bytes(oriented_jpeg(6, 90, 140))
        (root / "class-0" / "y.jpg").write_bytes(cmyk_jpeg())
        (root / "class-1" / "z.png").write_bytes(png())
        (root / "class-1" / "z.jpg").write_bytes(png())
    age(root)
    return root


def age(root: Path) -> None:
    """Waits until the files are old enough that another change would change their times."""
    newest = max(path.stat().st_ctime_ns for path in root.rglob("*.*"))
    until(lambda: time.time_ns() - newest > 150_000_000)


def epoch(loader: Loader[Any]) -> dict[int, torch.Tensor]:
    """The images of an epoch by their rows."""
    found = {}
    for batch in loader:
        images = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        found |= dict(zip(loader.batch.rows.tolist(), images, strict=True))
    return found


def recode_all(loader: Loader[Any], rows: int = ROWS) -> None:
    """Runs epochs until all of so many images are read from records."""

    def all_read() -> bool:
        before = loader.stats().from_recoded
        for _ in loader:
            pass
        return loader.stats().from_recoded - before == rows

    until(all_read)


def same(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    """Whether two epochs have the same rows and the same pixels."""
    return a.keys() == b.keys() and all(torch.equal(a[row], b[row]) for row in a)


def near(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    """Whether two epochs have the same rows, with pixels that two decoders may give."""
    differences = [(a[row].int() - b[row].int()).abs() for row in a if row in b]
    close = all(each.float().mean() < 6 and each.max() < 60 for each in differences)
    return a.keys() == b.keys() and close


def open_loader(source: Any, cache: Any = None, **options: Any) -> Loader[Any]:
    """A loader of random crops in random order."""
    how = {"shuffle": True, "seed": 7, "transforms": {"image": CROPS}, "num_workers": 2}
    return Loader(source, 5, cache=cache, **{**how, **options})


def from_pack(source: Any, target: Path, number: int, **options: Any) -> dict[int, torch.Tensor]:
    """The images of an epoch of the dataset that `fastio pack` makes of a source."""
    if not target.exists():
        fastio.pack(source, target)
    with open_loader(target, **options) as loader:
        loader.set_epoch(number)
        return epoch(loader)


def pieces(cache: Path) -> list[Path]:
    """The files of the pieces in a cache."""
    return sorted(path for path in (cache / "data").rglob("*") if path.is_file())


def status(cache: Path) -> Any:
    """What a cache holds of its only dataset."""
    with Cache(cache) as opened:
        (dataset,) = opened.status().datasets
        return dataset


def replace_keeping_times(path: Path, data: bytes) -> None:
    """Replaces a file by another of the same size and time of modification."""
    before = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(data + b"\0" * (before.st_size - len(data)))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
