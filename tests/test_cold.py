"""Packed tables and tokens that are not in the page cache: read ahead by windows, and let go of."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fastio
from fastio import Loader, Schema, Tokens
from fastio.engine.fields.cold import ColdRows, ColdWindow, ReadAheadPlan, windows_of
from fastio.order.order import Order
from fastio.order.plan import Plan
from fastio.order.sampling import Ranks
from fastio.packed import comparisons
from fastio.runtime import memory
from fastio.stage import shuffling
from tests.support import give_memory, open_loader, until
from tests.token_support import Padding, Windows

ROWS = 250_000
ROW_BYTES = 256
BLOCK_BYTES = 512 << 10
Resident = np.ndarray[Any, np.dtype[np.bool_]]


def pages(path: Path) -> Resident:
    """Which pages of a file are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            data = np.frombuffer(mapped, np.uint8)
            found = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            address, result = ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(found.ctypes.data)
            assert libc.mincore(address, ctypes.c_size_t(size), result) == 0
            del data
    return (found & 1).astype(np.bool_)


def forget(folder: Path) -> None:
    """Drops a dataset from the page cache; skips the test where the file system keeps it."""
    os.sync()
    for path in folder.glob("shard-*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if pages(path).mean() > 0.1:
            pytest.skip("this file system does not let go of pages")


def share(folder: Path, window: ColdWindow) -> float:
    """How much of a window's rows is in memory. Opens nothing, as that reads what is around."""
    found = pages(folder / "shard-000000.arrow")
    there = [
        found[row * ROW_BYTES // mmap.PAGESIZE]  # less a page, where the shard's head is
        for first, last in window.runs
        for row in range(first, last, 4)
    ]
    return float(np.mean(there))


def usual_share(folder: Path, windows: list[ColdWindow]) -> float:
    """`share` of most windows: a disk may read much around what is asked for."""
    return float(np.median([share(folder, window) for window in windows]))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 256 bytes, 64 MB in one shard."""
    path = tmp_path_factory.mktemp("cold") / "ds"
    numbers = np.repeat(np.arange(ROWS, dtype=np.float32), 62)
    x = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 62)
    rows = pa.table({"x": x, "y": np.arange(ROWS)})
    fastio.pack(rows, path, shard_size="1GiB")
    with fastio.open(path) as dataset:
        assert isinstance(dataset, fastio.Dataset)
        assert dataset.num_shards == 1
    return path


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards as large ones are: opening them does not read them."""
    monkeypatch.setattr(comparisons, "_CHECKED_BYTES", 0)


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose free memory is a third of the table."""
    monkeypatch.setattr(shuffling, "_BLOCK_BYTES", BLOCK_BYTES)
    give_memory(monkeypatch, ROWS * ROW_BYTES // 3)


def check(batch: dict[str, torch.Tensor]) -> list[int]:
    assert torch.equal(batch["x"][:, 61], batch["y"].to(torch.float32))
    return batch["y"].tolist()


@pytest.mark.usefixtures("small_memory")
def test_the_next_window_is_in_memory_after_the_first_batch(table: Path) -> None:
    forget(table)
    with Loader(table, 512, shuffle=True, seed=0) as loader:
        order = sampled_order(loader)
        windows = list(windows_of(order, ROW_BYTES))
        assert len(windows) >= 6
        run = iter(loader)
        rows = check(next(run))
        assert all(any(a <= row < b for a, b in windows[0].runs) for row in rows)
        until(lambda: min(share(table, window) for window in windows[:2]) > 0.99)
        assert usual_share(table, windows[3:]) < 0.5


def sampled_order(loader: Loader) -> Order:
    sampling = loader._feed.sampling
    order = sampling.orders(ROWS, 0, Ranks()).epoch(0)
    assert isinstance(order, Order)
    assert order.mode == "window"
    return order


@pytest.mark.usefixtures("small_memory")
def test_an_epoch_has_every_row_and_leaves_little_behind(table: Path) -> None:
    forget(table)
    with Loader(table, 512, shuffle=True, seed=0) as loader:
        windows = list(windows_of(sampled_order(loader), ROW_BYTES))
        seen, run = list[int](), iter(loader)
        while len(seen) < windows[4].end:
            seen += check(next(run))
        until(lambda: usual_share(table, windows[:3]) < 0.5)
        seen += [row for batch in run for row in check(batch)]
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.usefixtures("small_memory")
def test_an_epoch_goes_on_where_it_stopped(table: Path) -> None:
    forget(table)
    with Loader(table, 512, shuffle=True, seed=0) as loader:
        run = iter(loader)
        seen = [row for _ in range(100) for row in check(next(run))]
        state = loader.state_dict()
    with Loader(table, 200, shuffle=True, seed=0) as loader:
        loader.load_state_dict(state)
        seen += [row for batch in loader for row in check(batch)]
    assert sorted(seen) == list(range(ROWS))


def test_ranks_have_one_order_however_much_memory_is_free_when_they_start(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffling, "_BLOCK_BYTES", BLOCK_BYTES)
    seen: list[int] = []
    for rank, free in enumerate((1 << 40, ROWS * ROW_BYTES // 3, ROWS * ROW_BYTES // 9)):
        told = SimpleNamespace(read_text=lambda free=free: f"MemAvailable: {free >> 10} kB")
        monkeypatch.setattr(memory, "_MEMINFO", told)
        with Loader(table, 512, shuffle=True, seed=0, rank=rank, world_size=3) as loader:
            for batch in loader:
                seen += check(batch)[: loader.batch.valid]
    assert sorted(seen) == list(range(ROWS))


def test_a_state_of_a_machine_with_other_windows_goes_on_in_them(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffling, "_BLOCK_BYTES", BLOCK_BYTES)
    seen, state = [], None
    for part in (3, 5):
        give_memory(monkeypatch, ROWS * ROW_BYTES // part)
        with Loader(table, 512, shuffle=True, seed=0) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in loader:
                seen += check(batch)
                if state is None and len(seen) == 512 * 100:
                    break
            state = loader.state_dict()
    assert sorted(seen) == list(range(ROWS))


def test_a_table_that_fits_is_read_ahead_and_stays(table: Path) -> None:
    forget(table)
    with Loader(fastio.open(table, resident=False), 512, shuffle=True, seed=0) as loader:
        run = iter(loader)
        next(run)
        everything = ColdWindow(0, ROWS, np.zeros(1, np.int64), ROWS, ROWS)
        until(lambda: share(table, everything) > 0.99)
        assert sum(1 for _ in run) == len(loader) - 1
    assert share(table, everything) > 0.99


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 KB of tokens."""
    path, rng = tmp_path_factory.mktemp("documents") / "packed", np.random.default_rng(0)
    with fastio.Writer(path, Schema({"tokens": Tokens("uint16")}), shard_size=32 << 10) as writer:
        for _ in range(1000):
            writer.write({"tokens": rng.integers(0, 60_000, rng.integers(0, 200), np.uint16)})
    return path


@pytest.mark.parametrize(
    "view",
    [
        Windows(100),
        Windows(64, positions=True),
        Windows(64, packing="best-fit"),
        Padding(80),
    ],
)
@pytest.mark.parametrize("order", ["auto", "sequential"])
def test_tokens_beyond_memory_are_those_that_memory_would_hold(
    view: Any, order: Any, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffling, "_BLOCK_BYTES", 8 << 10)
    options: dict[str, Any] = {"view": view, "batch_size": 1}
    key = "input_ids" if isinstance(view, Padding) else "inputs"
    with open_loader(documents, **options) as loader:
        expected = [batch[key][0].tolist() for batch in loader]
    give_memory(monkeypatch, 100 << 10)
    shuffle = True if order == "auto" else None
    with open_loader(documents, shuffle=shuffle, order=order, **options) as loader:
        found = {}
        for batch in loader:
            assert loader.batch.rows is not None
            found[int(loader.batch.rows[0])] = batch[key][0].tolist()
    assert [found[row] for row in range(len(expected))] == expected


@pytest.mark.parametrize("mode", ["sequential", "shuffle", "window"])
@pytest.mark.parametrize(("rows", "block", "window"), [(1, 1, 1), (1000, 7, 5), (999, 50, 3)])
def test_windows_have_each_row_once_and_where_it_stands(
    mode: Any, rows: int, block: int, window: int
) -> None:
    order = Order(rows, 3, 1, mode, block, window)
    walk = order.at(np.arange(rows))
    windows = list(windows_of(order, 4096.0))
    assert windows[0].begin == 0
    assert windows[-1].end == rows
    seen: list[int] = []
    for each in windows:
        expected = sorted(walk[each.begin : each.end].tolist())
        assert [row for a, b in each.runs for row in range(a, b)] == expected
        seen += expected
    assert sorted(seen) == list(range(rows))


def test_an_order_of_no_rows_has_no_windows() -> None:
    assert list(windows_of(Order(0), 1.0)) == []


def test_batches_do_without_a_disk_that_takes_no_advice(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EINVAL, "no advice")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    order = Order(ROWS, 0, 0, "window", 64, 64)
    with fastio.open(table) as dataset:
        layout = dataset.fixed_columns(["y"])
        assert layout is not None
        rows, windows = ColdRows(layout), windows_of(order, ROW_BYTES)
        plan = ReadAheadPlan(iter(Plan(order, 10_000)), windows, rows, 0, True)
        counted: list[int] = []
        thread = threading.Thread(target=lambda: counted.append(sum(1 for _ in plan)), daemon=True)
        thread.start()
        thread.join(60)
        assert counted == [ROWS // 10_000]


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    mapping = fastio._native.Mapping(str(path))
    before = mapping.data.copy()
    for offset, nbytes in (
        (0, 1 << 14),
        (5000, 100),
        (1 << 14, 1),
        (1 << 60, 1 << 60),
        (3, 1 << 62),
    ):
        mapping.release(offset, nbytes)
        assert np.array_equal(mapping.data, before)
