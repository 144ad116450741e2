"""Reads the next rows of a table into the page cache ahead of time, and drops used ones from it.

Without this, a packed table that is not in the page cache is read by page faults, one at a time.
Orders by windows tell which bytes come next: a thread asks the system to read those of the next
window, in requests as large as the device accepts. The bytes go to the page cache, so a wrong guess
costs time but is never an error. If the table is larger than memory, the pages of windows that were
read are dropped before the system has to choose others. Batches of a window then wait until all of
it was requested, since page faults would read far more than they need, or single pages.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastio.errors import FastioError
from fastio.order.order import Order
from fastio.order.orders import AnyOrder
from fastio.order.plan import PlannedBatch
from fastio.packed import Dataset
from fastio.packed.layout import Layout, Ranges
from fastio.packed.shard import ShardReader
from fastio.runtime.threads import DaemonPool

# Bytes of a request: the system leaves out what of a larger one is beyond the device's limit.
_LEAST_REQUEST_BYTES = 128 << 10
_MOST_REQUEST_BYTES = 4 << 20
_PIECE_BYTES = 8 << 20  # rows of a window of an order that has no windows
_LAG = 8  # a window is let go of when this part of the next one was read

Rows = npt.NDArray[np.int64]


class ColdRows:
    """The places of a layout's rows in its files, for read-ahead. Thread-safe.

    Args:
        layout: layout of a packed dataset on this machine.

    Attributes:
        nbytes: total size of its files.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._dataset: Dataset = layout.dataset
        self.nbytes = self._dataset.manifest.nbytes

    def read(self, first: int, last: int, stop: threading.Event, alone: bool) -> None:
        """Asks the system to read the bytes of rows [first, last) in the background.

        Args:
            first, last: range of rows.
            stop: event that cancels the remaining requests.
            alone: whether page faults read only the page that is needed.
        """
        for file, reader, ranges in self._files(first, last, stop):
            if alone:
                reader.mapping.expect_scattered()
            request_bytes = _request_bytes(os.fstat(file).st_dev)
            for offset, nbytes in ranges:
                for at in range(offset, offset + nbytes, request_bytes):
                    if stop.is_set():
                        return
                    size = min(request_bytes, offset + nbytes - at)
                    os.posix_fadvise(file, at, size, os.POSIX_FADV_WILLNEED)

    def drop(self, first: int, last: int, stop: threading.Event) -> None:
        """Drops the pages of rows [first, last), unless another process has them mapped."""
        for file, reader, ranges in self._files(first, last, stop):
            for offset, nbytes in ranges:
                reader.mapping.release(offset, nbytes)  # mapped pages would stay
                os.posix_fadvise(file, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def _files(
        self, first: int, last: int, stop: threading.Event
    ) -> Iterator[tuple[int, ShardReader, Ranges]]:
        """Yields the shards of rows: an open descriptor, the reader, and the ranges of the rows."""
        bounds = self._layout.first_row
        number = int(np.searchsorted(bounds, first, side="right")) - 1
        while first < last and not stop.is_set():
            begin, end = int(bounds[number]), int(bounds[number + 1])
            until = min(end, last)
            # What is wrong with a shard is said when its rows are wanted. ValueError: it is closed.
            with suppress(FastioError, OSError, ValueError):
                reader = self._dataset.shard(self._layout.shard(number))
                ranges = self._layout.ranges(number, reader, first - begin, until - begin)
                file = os.open(reader.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    yield file, reader, ranges
                finally:
                    os.close(file)
            first, number = until, number + 1


@lru_cache(maxsize=64)
def _request_bytes(device: int) -> int:
    """Returns the maximum size of a read-ahead request of a device."""
    number = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    limit = _LEAST_REQUEST_BYTES
    for folder in (f"{number}/queue", f"{number}/../queue"):  # of a disk, and of its partition
        with suppress(OSError, ValueError):
            limit = max(limit, int(Path(f"{folder}/read_ahead_kb").read_text()) << 10)
    return min(limit, _MOST_REQUEST_BYTES)


class ColdWindow:
    """Rows that are read together.

    Attributes:
        begin, end: range of positions of the order.
        runs: [first, last) of consecutive rows, ascending.
    """

    def __init__(self, begin: int, end: int, blocks: Rows, block: int, rows: int) -> None:
        self.begin, self.end = begin, end
        blocks = np.sort(blocks)
        cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
        firsts = blocks[np.append(0, cuts)] * block
        lasts = np.minimum((blocks[np.append(cuts - 1, len(blocks) - 1)] + 1) * block, rows)
        self.runs: list[tuple[int, int]] = list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def windows_of(order: AnyOrder, row_bytes: float) -> Iterator[ColdWindow]:
    """Yields the windows of an order; an order without windows gives pieces, or all of its rows.

    Args:
        order: order of an epoch.
        row_bytes: size of a row in the files.
    """
    rows = order.rows
    if not rows or not isinstance(order, Order):
        return
    if order.mode == "shuffle":
        # Any row may be next, so all of the table is requested at once.
        yield ColdWindow(0, rows, np.zeros(1, np.int64), rows, rows)
    elif order.mode == "sequential":
        block = max(1, int(_PIECE_BYTES / max(row_bytes, 1e-9)))
        for number in range(-(-rows // block)):
            end = min((number + 1) * block, rows)
            yield ColdWindow(number * block, end, np.array([number], np.int64), block, rows)
    else:
        begins, ends = order.window_of(np.arange(order.blocks))
        turns = np.argsort(begins, kind="stable")
        cuts = np.flatnonzero(np.diff(begins[turns])) + 1
        for blocks in np.split(turns, cuts):
            begin, end = int(begins[blocks[0]]), int(ends[blocks[0]])
            yield ColdWindow(begin, end, blocks, order.block, rows)


class ReadAheadPlan:
    """The batches of a plan; reading them requests the rows of the next window. For one thread.

    Args:
        plan: the batches.
        windows: windows of the plan's order.
        rows: places of the rows.
        position: position at which the plan starts.
        drop: whether windows that were read are dropped from the page cache.
    """

    def __init__(
        self,
        plan: Iterator[PlannedBatch],
        windows: Iterator[ColdWindow],
        rows: ColdRows,
        position: int,
        drop: bool,
    ) -> None:
        self._plan = plan
        self._windows = windows
        self._next = next(windows, None)
        # Windows that are not dropped, oldest first; each with its request, done by the thread.
        self._read: deque[tuple[ColdWindow, Future[None]]] = deque()
        self._rows = rows
        self._drop = drop
        self._stop = threading.Event()
        self._pool = DaemonPool(1, "fastio-cold")
        while self._next is not None and self._next.end <= position:
            self._next = next(windows, None)

    def __iter__(self) -> ReadAheadPlan:
        return self

    def __next__(self) -> PlannedBatch:
        planned = next(self._plan, None)
        if planned is None:
            self.close()
            raise StopIteration
        self._reach(planned.next_position)
        return planned

    def close(self) -> None:
        """Ends the thread, which first drops the windows that were read. Idempotent."""
        while self._drop and self._read:
            self._let_go(self._read.popleft()[0])
        self._pool.shutdown(wait=False)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return  # modules may be unloaded
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _reach(self, position: int) -> None:
        """Requests the windows up to the one after a position, and drops those before it."""
        # One window ahead of the batches is requested: the next one, when the newest one begins.
        while self._next is not None and (
            not self._read or self._read[-1][0].begin < position or self._next.begin <= position
        ):
            asked = self._pool.submit(_ask, self._next, self._rows, self._stop, self._drop)
            self._read.append((self._next, asked))
            self._next = next(self._windows, None)
        if self._drop:
            for window, asked in self._read:
                if window.begin < position:
                    # Waits for the window, because a batch would read it by page faults, one at a
                    # time: see the docstring of the module.
                    asked.result()
        while self._read and self._read[0][0].end + self._lag(self._read[0][0]) <= position:
            window, _ = self._read.popleft()
            if self._drop:
                self._let_go(window)

    def _let_go(self, window: ColdWindow) -> None:
        self._pool.submit(_drop, window, self._rows, self._stop)

    @staticmethod
    def _lag(window: ColdWindow) -> int:
        """Returns how many positions after a window's end batches may still use its rows."""
        return (window.end - window.begin) // _LAG


# Ignored: a shard that was closed, or a file system that refuses advice, costs time only.
_IGNORED = (FastioError, OSError, ValueError)


def _ask(window: ColdWindow, rows: ColdRows, stop: threading.Event, alone: bool) -> None:
    with suppress(*_IGNORED):
        for first, last in window.runs:
            rows.read(first, last, stop, alone)


def _drop(window: ColdWindow, rows: ColdRows, stop: threading.Event) -> None:
    with suppress(*_IGNORED):
        for first, last in window.runs:
            rows.drop(first, last, stop)
