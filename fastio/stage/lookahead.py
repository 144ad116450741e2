"""Makes the stager of a loader, and requests blocks ahead of the batches that need them.

If the order has windows of whole shards, the shards of the next windows are requested by the
windows. A window may have hundreds of thousands of rows: planning its batches only to find the next
window's shards would take longer than computing the sequence of windows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from fastio.errors import CacheError
from fastio.order.order import Order, ShardOrder
from fastio.order.orders import Orders
from fastio.order.partitions import PartitionedOrder
from fastio.order.plan import PlannedBatch
from fastio.order.sampling import Ranks, Sampling
from fastio.packed.rows import Rows
from fastio.stage.blocks import Blocks, GroupBlocks, Numbers, blocks_of
from fastio.stage.forecast import Forecast
from fastio.stage.shuffling import by_blocks, by_groups, by_shards, groups_in_window, window_bytes
from fastio.stage.stager import BLOCKS_AT_ONCE, Stager
from fastio.store import OBJECTS_AT_ONCE

_LEAST_AHEAD_BYTES = 64 << 20
_MOST_AHEAD_BYTES = 4 << 30
_BUDGET_SHARE = 4  # the share of a cache that blocks fetched ahead may take
_MOST_BATCHES = 4096
_MOST_SMALL_BLOCKS = 64  # small blocks that are fetched in parallel
_LEAST_AHEAD_SHARDS = 2  # beyond the current window
_GROUPS_AT_ONCE = 2  # row groups that are read in parallel
Window = tuple[int, Numbers]  # the position after a window's last row, and the window's shards


def staged(
    dataset: Rows, sampling: Sampling, fields: Sequence[str] | None
) -> tuple[Sampling, Stager]:
    """Returns the sampling for a remote dataset, and a stager that fetches its blocks.

    Datasets without images are staged by whole shards, and table files with images by row groups.
    `fastio.stage.shuffling` chooses the windows in which rows are shuffled.

    Args:
        dataset: dataset of the loader, which has a `remote_part`.
        sampling: requested sampling.
        fields: fields that are delivered; None for all.

    Raises:
        CacheError: the cache's folder cannot be used.
    """
    remote = dataset.remote_part
    assert remote is not None
    sampling = replace(sampling, partitions=remote.partitions)
    groups = remote.grouped
    if groups is not None:
        bounds, window = groups.group_bounds.tolist(), groups_in_window(groups)
        sampling = by_groups(sampling, bounds, window, shared=True)
        return sampling, Stager(GroupBlocks(groups, fields), None, _GROUPS_AT_ONCE)
    packed, bounds = remote.packed, dataset.shard_bounds()
    if remote.whole and packed is not None and bounds is not None:
        sampling = by_shards(sampling, bounds.tolist(), packed.cache is not None)
        return sampling, Stager(Blocks(packed, 0, bounds=bounds), packed.cache)
    room = None if remote.cache is None else remote.cache.folder().room
    sampling, rows = by_blocks(remote, sampling, room)
    # Objects have a field that may be sound, and labels that are known without them.
    names = list(remote.schema.fields)[:1] if remote.separate else remote.schema.pictured
    blocks = blocks_of(remote, rows, fields is None or any(n in names for n in fields))
    at_once = BLOCKS_AT_ONCE
    if remote.separate:  # small blocks have few objects
        at_once = max(at_once, min(_MOST_SMALL_BLOCKS, OBJECTS_AT_ONCE // rows))
    stager = Stager(blocks, remote.cache, at_once)
    blocks.read_through(stager.staged_path)
    return sampling, stager


def ahead_bytes(sampling: Sampling, stager: Stager, ranks: Ranks) -> int:
    """Returns the bytes of blocks that are fetched ahead.

    In window order it is at least two windows of each partition that this rank reads.
    """
    wanted = _LEAST_AHEAD_BYTES
    with suppress(CacheError):  # the stager goes on without the cache, and warns
        if stager.cache is not None:
            wanted = min(wanted, stager.cache.folder().room // _BUDGET_SHARE)
    if isinstance(stager.blocks, GroupBlocks):
        wanted = max(wanted, window_bytes(stager.blocks.grouped))
    if sampling.mode in ("window", "settle"):
        windows = 2 * len(ranks.share_of(sampling.partitions_of(ranks)))
        window = sampling.shuffling.window or 1
        wanted = max(wanted, windows * window * stager.blocks.mean_bytes)
    return wanted


def most_ahead_bytes(stager: Stager) -> int:
    """Returns the most bytes of blocks that are fetched ahead into a cache; see `StagingPlan`.

    A step of all ranks waits for the slowest of all their requests, which may take many times as
    long as most requests. A node therefore fetches as far ahead as its disk allows. The result is 0
    if blocks are in memory, or if they are shards, because two windows of shards last long enough.
    """
    if stager.cache is None or not stager.blocks.block_rows:
        return 0
    with suppress(CacheError):
        return min(_MOST_AHEAD_BYTES, stager.cache.folder().room // _BUDGET_SHARE)
    return 0


@dataclass(frozen=True)
class StagingPlan:
    """How far ahead a run over a remote dataset fetches blocks.

    Attributes:
        forecast: forecast that is recorded for other processes.
        position: position in the epoch at which the run begins.
        ahead_bytes: size of the blocks that may be requested and not yet released.
        following: function that returns the next epoch's plan; None if it is unknown.
        partitions: the partitions of the order that this rank reads.
        pool_rows: number of positions per pool; see `order.buckets.BucketPlan`. 1 if each batch has
            the rows of its own positions.
        most_bytes: limit up to which `ahead_bytes` grows with the bytes of the blocks that were
            used, so that short runs fetch little that they do not use. No effect if it is less than
            `ahead_bytes`.
    """

    forecast: Forecast
    position: int
    ahead_bytes: int
    following: Callable[[], Iterator[PlannedBatch]] | None = None
    partitions: range = range(1)
    pool_rows: int = 1
    most_bytes: int = 0

    def pool_around(self, first: int, last: int) -> tuple[int, int]:
        """Returns the range of positions of the pools that contain a range of positions."""
        return first // self.pool_rows * self.pool_rows, -(-last // self.pool_rows) * self.pool_rows


class Lookahead:
    """The batches of a plan, whose blocks are requested ahead of them.

    Used by one thread at a time. After the plan's last batch, blocks of the next epoch's first
    batches, or its first window, are requested, so that the next epoch starts without waiting.
    Those batches are not yielded.

    Args:
        plan: batches.
        stager: stager that fetches blocks.
        staging: how far ahead blocks are fetched.
    """

    def __init__(self, plan: Iterator[PlannedBatch], stager: Stager, staging: StagingPlan) -> None:
        forecast, following = staging.forecast, staging.following
        self._plan: Iterator[PlannedBatch] | None = plan
        self._stager = stager
        self._generation = stager.generation
        self._forecast = forecast
        self._pool_around = staging.pool_around
        self._ahead_bytes, self._most_bytes = staging.ahead_bytes, staging.most_bytes
        self._used_bytes = 0
        self._reached = 0  # the end of the last window that was requested
        self._following = following
        windows = _windows(staging)
        # The windows of the first batches: one of each partition.
        current = list(islice(windows, len(staging.partitions)))
        self._windows = chain(current, windows)
        self._window = next(self._windows, None)
        self._by_windows = self._window is not None
        if self._by_windows:
            least = sum(len(shards) + _LEAST_AHEAD_SHARDS for _, shards in current)
            self._ahead_bytes = max(staging.ahead_bytes, least * stager.blocks.mean_bytes)
        self._requested: deque[Window] = deque()
        self._next_plan: Iterator[PlannedBatch] | None = None
        self._queue: deque[tuple[PlannedBatch, Numbers]] = deque()
        self._carried: list[Numbers] = []
        self._counts: Counter[int] = Counter()
        self._done = self._ahead = staging.position
        self._began = False

    def __iter__(self) -> Lookahead:
        return self

    def __next__(self) -> PlannedBatch:
        self._fill()
        if not self._queue:
            self._stager.carry([*self._carried, *(shards for _, shards in self._requested)])
            self._carried = []
            self._requested.clear()
            self._window = None
            raise StopIteration
        planned, blocks = self._queue.popleft()
        self._uncount(blocks)
        return planned

    def blocks(self, planned: PlannedBatch) -> Numbers:
        """Returns the blocks of a yielded batch. Its reader has to call the stager's `done`."""
        return self._stager.blocks.of(np.asarray(planned.rows, np.int64))

    def finished(self, planned: PlannedBatch) -> None:
        """Records that a batch was delivered."""
        self._done = max(self._done, planned.next_position)
        self._tell()

    def close(self) -> None:
        """Releases the blocks of batches that were not yielded."""
        self._plan = self._next_plan = self._following = None
        held = [*(blocks for _, blocks in (*self._queue, *self._requested)), *self._carried]
        self._window = None
        for each in (self._queue, self._requested, self._carried):
            each.clear()
        # After a fork, or after it was opened again, the stager does not have these requests.
        if self._stager.generation is self._generation:
            for blocks in held:
                self._stager.done(blocks)

    def _fill(self) -> None:
        if not self._began:
            self._request_windows()  # the plan may read them, see `views.padded`
        while self._plan is not None and not self._full():
            planned = next(self._plan, None)
            if planned is None:
                self._plan = None
                if self._following is not None and not self._by_windows:
                    self._next_plan = self._following()
                break
            self._queue.append((planned, self._want(self.blocks(planned))))
            self._ahead = planned.next_position
        self._request_windows()
        while self._next_plan is not None and not self._full():
            planned = next(self._next_plan, None)
            if planned is None:
                self._next_plan = None
                break
            self._carried.append(self._want(self.blocks(planned)))
            if self._forecast.orders is not None:
                self._ahead = self._forecast.orders.rows + planned.next_position
        if not self._began:
            self._began = True
            # Not before this run has requested its own blocks: otherwise the blocks that the epoch
            # before requested for it would be released and fetched again.
            self._stager.carry([])
            self._tell()

    def _tell(self) -> None:
        self._stager.tell(self._forecast, *self._pool_around(self._done, self._ahead))

    def _request_windows(self) -> None:
        """Requests the next windows, and releases those whose batches were planned."""
        while self._requested and self._requested[0][0] <= self._ahead:
            _, shards = self._requested.popleft()
            self._uncount(shards)
            self._stager.done(shards)
        _, pool_end = self._pool_around(0, self._ahead + 1)  # rows of the next batches may be there
        while self._window is not None and (self._reached < pool_end or not self._enough()):
            end, shards = self._window
            self._window, self._reached = next(self._windows, None), end
            if end > self._ahead:
                self._requested.append((end, self._want(shards)))

    def _enough(self) -> bool:
        """Returns whether as many blocks are requested as may be."""
        nbytes: int = len(self._counts) * self._stager.blocks.mean_bytes
        return nbytes >= max(self._ahead_bytes, min(self._most_bytes, self._used_bytes))

    def _full(self) -> bool:
        """Returns whether enough batches are planned: one if windows are requested, else many."""
        planned = len(self._queue) + len(self._carried)
        if self._by_windows or not planned:
            return planned > 0
        return self._enough() or planned >= _MOST_BATCHES

    def _want(self, blocks: Numbers) -> Numbers:
        self._stager.want(blocks)
        self._counts.update(blocks.tolist())
        return blocks

    def _uncount(self, blocks: Numbers) -> None:
        for block in blocks.tolist():
            self._counts[block] -= 1
            if self._counts[block] <= 0:
                del self._counts[block]
                self._used_bytes += self._stager.blocks.mean_bytes

    def __del__(self) -> None:
        # When the interpreter exits, modules may be unloaded.
        with suppress(Exception):
            self.close()


def _windows(staging: StagingPlan) -> Iterator[Window]:
    """Yields the windows of an epoch that this rank reads; none if windows are not of shards.

    If the next epoch follows, its first windows follow the last ones.
    """
    orders, epoch = staging.forecast.orders, staging.forecast.epoch
    if orders is None or orders.bounds is None:
        return
    yield from _of_epoch(orders, epoch, staging)
    if staging.following is not None:
        following = _of_epoch(orders, epoch + 1, staging)
        for end, shards in islice(following, len(staging.partitions)):
            yield orders.rows + end, shards


def _of_epoch(orders: Orders, epoch: int, staging: StagingPlan) -> Iterator[Window]:
    """Yields the windows of an epoch; none if each batch has rows from anywhere.

    A window ends with the pool in which its last row is.
    """
    order = orders.epoch(epoch)
    if isinstance(order, PartitionedOrder):
        windows = order.spans(staging.partitions)
    elif isinstance(order, ShardOrder):
        windows = order.spans()
    elif isinstance(order, Order) and order.mode == "sequential":
        assert orders.bounds is not None
        windows = ((end, np.array([n], np.int64)) for n, end in enumerate(orders.bounds[1:]))
    else:
        return
    for end, shards in windows:
        yield min(staging.pool_around(0, end)[1], orders.rows), shards
