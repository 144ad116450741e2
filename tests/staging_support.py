"""What the tests of remote datasets share: data whose rows can be told, and what is right."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
import fastio.packed.packed
from fastio import (
    Array,
    Cache,
    Image,
    Loader,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Scalar,
    Schema,
    Text,
)
from fastio.store import Store
from tests.support import open_loader

SIDE = 64  # pixels: 12 KiB a raw image, so 16 rows are a block of the least size
CROPS = [RandomResizedCrop((16, 16)), RandomHorizontalFlip()]
MIB = 1 << 20


def noise(row: int, side: int = SIDE, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An image that no other row has: uint8 (side, side, 3)."""
    rng = np.random.default_rng([seed, row])
    return rng.integers(0, 256, (side, side, 3), np.uint8)


def pack_noise(path: Path, rows: int = 256, shard_size: int = MIB, side: int = SIDE) -> Path:
    """A packed dataset of raw images and their numbers, with several blocks a shard."""
    samples = ((noise(row, side), row) for row in range(rows))
    fastio.pack(samples, path, codec="raw", shard_size=shard_size)
    return path


def pack_mixed(path: Path, rows: int = 120) -> Path:
    """A packed dataset with two image fields, text, an array and a number."""
    schema = Schema(
        {
            "left": Image(),
            "right": Image(),
            "caption": Text(),
            "box": Array("float32", (4,)),
            "number": Scalar("int64"),
        },
        structure="dict",
    )
    with fastio.Writer(path, schema, codec="raw", shard_size=MIB // 2) as writer:
        for row in range(rows):
            box = np.arange(4, dtype=np.float32) + row
            writer.write(
                {
                    "left": noise(row),
                    "right": noise(row, 32, seed=1),
                    "caption": f"row {row}",
                    "box": box,
                    "number": row,
                }
            )
    return path


def pack_table(path: Path, rows: int = 4000, shard_size: int = 32 << 10) -> Path:
    """A packed dataset without images, in many small shards."""
    samples = ({"x": np.full(8, row, np.float32), "y": row} for row in range(rows))
    fastio.pack(samples, path, shard_size=shard_size)
    return path


class Reference:
    """What a loader of the local copy delivers, row by row."""

    def __init__(self, path: Path, transforms: Any = CROPS, seed: int = 0) -> None:
        self._path, self._transforms, self._seed = path, transforms, seed
        self._epochs: dict[int, torch.Tensor] = {}

    def crops(self, epoch: int) -> torch.Tensor:
        """The images of all rows in an epoch: uint8 (N, C, H, W)."""
        if epoch not in self._epochs:
            with Loader(
                self._path, 64, transforms=self._transforms, seed=self._seed, num_workers=1
            ) as loader:
                loader.set_epoch(epoch)
                self._epochs[epoch] = torch.cat([images for images, _ in loader])
        return self._epochs[epoch]

    def check(self, loader: Loader, batch: Any) -> list[int]:
        """Compares the batch yielded last with what it must be; returns its rows that count."""
        images, labels = batch
        rows = loader.batch.rows
        assert rows is not None
        assert labels.tolist() == rows.tolist()
        # Not by torch, whose threads do not go through a fork.
        assert np.array_equal(images.numpy(), self.crops(loader.batch.epoch).numpy()[rows])
        return rows[: loader.batch.valid].tolist()

    def epoch(self, loader: Loader) -> list[int]:
        """One epoch, checked; the rows in the order in which they came."""
        return [row for batch in loader for row in self.check(loader, batch)]


def remote_loader(url: str, cache: Cache | None = None, batch_size: Any = 8, **options: Any) -> Any:
    """A loader as the tests use it: shuffled, small crops, 2 threads."""
    given = {"shuffle": True, "transforms": CROPS, "num_workers": 2, "seed": 0} | options
    if {"sampler", "batch_sampler", "order"} & given.keys():
        del given["shuffle"]
    return open_loader(url, batch_size, cache=cache, **given)


def short_deadlines(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float = 1.0, timeout_s: float = 0.4
) -> None:
    """Stores that are opened from here on give up early."""
    short = partial(Store, deadline_s=deadline_s, timeout_s=timeout_s)
    monkeypatch.setattr(fastio.packed.packed, "open_store", short)


def open_files() -> list[str]:
    """What the descriptors of this process stand for."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # the listing's own
    return found


def fastio_threads() -> list[str]:
    """The names of fastio's threads."""
    return [t.name for t in threading.enumerate() if t.name.startswith("fastio")]


def piece_files(cache: Cache | Path) -> Iterator[Path]:
    """The files of a cache's pieces."""
    folder = cache if isinstance(cache, Path) else cache.path
    return (path for path in folder.glob("data/*/*/*") if path.is_file())


def block_files(cache: Cache | Path) -> Iterator[Path]:
    """Those of `piece_files` that are blocks of rows, and no heads of shards."""
    # The folder of a source is named FINGERPRINT-BLOCK_ROWS, and heads have 0 rows.
    return (path for path in piece_files(cache) if not path.parts[-3].endswith("-0"))


def disk_use(folder: Path) -> int:
    """Bytes that a folder's files and folders take, as `du` counts them."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in (".", *names):
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue  # gone meanwhile
    return total
