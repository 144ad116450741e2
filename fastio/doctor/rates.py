"""Samples a second of loaders, each measured for a second or two."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastio.loader import Loader
from fastio.stats import Stats
from fastio.transforms import RandomHorizontalFlip, RandomResizedCrop

SECONDS = 1.5
_BATCHES = 3  # at least, and
_PATIENCE_S = 8.0  # at most, where they are slow to come
_SHM = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


def loader_rate(loader: Loader, seconds: float = SECONDS, warm_samples: int = 0) -> float | None:
    """Samples a second; None where no batches come. The loader is closed.

    Args:
        loader: its epoch is long enough, or begins again.
        seconds: to measure for.
        warm_samples: that come first and do not count: until the data is in memory.
    """
    rate, _ = loader_run(loader, seconds, warm_samples)
    return rate


def loader_run(loader: Loader, seconds: float, warm_samples: int = 0) -> tuple[float | None, Stats]:
    """As `loader_rate`, and what the stages did."""
    with loader:
        began_s, before = time.perf_counter(), loader.stats()
        counted_s: float | None = None
        for _ in _epochs(loader):
            now_s, stats = time.perf_counter(), loader.stats()
            if counted_s is None:
                if stats.samples > warm_samples or now_s - began_s > _PATIENCE_S:
                    counted_s, before = now_s, stats
                continue
            took_s, done = now_s - counted_s, stats - before
            if (took_s > seconds and done.batches >= _BATCHES) or took_s > _PATIENCE_S:
                return done.samples / took_s, done
        return None, loader.stats() - before


def _epochs(loader: Loader) -> Iterator[Any]:
    """Batches without end; none where an epoch has none."""
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            return


def image_loader(
    dataset: Any, field: str, rows: int, threads: int, crop: int, **options: Any
) -> Loader:
    """A loader of crops of a dataset's images, in small batches, without end."""
    return Loader(
        dataset,
        batch_size=16,
        sampler=_Again(rows),
        fields=[field],
        transforms={field: [RandomResizedCrop(crop), RandomHorizontalFlip()]},
        threads=threads,
        prefetch_factor=4,
        on_error="replace",
        **options,
    )


class _Again:
    """The rows [0, rows) in random orders, often enough for any measurement."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._times = max(1, 200_000 // max(1, rows))

    def __iter__(self) -> Iterator[int]:
        draws = np.random.default_rng(0)
        for _ in range(self._times):
            yield from draws.permutation(self._rows).tolist()

    def __len__(self) -> int:
        return self._rows * self._times


@contextmanager
def room(scratch: str | None = None) -> Iterator[Path]:
    """A folder for files that are deleted again: in memory where there is some, else where the
    system keeps temporary files.

    Args:
        scratch: a folder of the user's to take instead.
    """
    where = scratch
    if where is None and _SHM.is_dir() and os.access(_SHM, os.W_OK):
        about = os.statvfs(_SHM)
        where = str(_SHM) if about.f_bavail * about.f_frsize > _ROOM_BYTES else None
    folder = Path(tempfile.mkdtemp(prefix="fastio-doctor-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
