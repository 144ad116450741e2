"""Iterates over a plan and requests blocks ahead of the batches that need them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from fastio.order.plan import PlannedBatch
from fastio.stage.forecast import Forecast
from fastio.stage.stager import Numbers, Stager
from fastio.stage.windows_ahead import windows_ahead

_MOST_BATCHES = 4096
_MOST_IN_WINDOWS = 256  # used if windows are requested ahead, which cover what follows


class Lookahead:
    """The batches of a plan, whose blocks are requested up to `ahead_bytes` ahead.

    Used by one thread at a time. After the plan's last batch, blocks of the next epoch's first
    batches are requested, so that the next epoch starts without waiting. Those batches are not
    yielded.

    Args:
        plan: The batches.
        stager: The stager that fetches blocks.
        forecast: The forecast that is recorded for other processes.
        position: The position in the epoch at which the plan begins.
        ahead_bytes: The size of blocks that may be requested and not yet released.
        following: Returns the next epoch's plan. None if it is unknown.
    """

    def __init__(
        self,
        plan: Iterator[PlannedBatch],
        stager: Stager,
        forecast: Forecast,
        position: int,
        ahead_bytes: int,
        following: Callable[[], Iterator[PlannedBatch]] | None = None,
    ) -> None:
        self._plan: Iterator[PlannedBatch] | None = plan
        self._stager = stager
        self._generation = stager.generation
        self._forecast = forecast
        self._ahead_bytes = ahead_bytes
        self._following = following
        self._windows = windows_ahead(
            forecast.orders, forecast.epoch, stager, ahead_bytes, following is not None
        )
        self._most_batches = _MOST_BATCHES if self._windows is None else _MOST_IN_WINDOWS
        self._next_plan: Iterator[PlannedBatch] | None = None
        self._queue: deque[tuple[PlannedBatch, Numbers]] = deque()
        self._carried: list[Numbers] = []
        self._counts: Counter[int] = Counter()
        self._done = position
        self._ahead = position
        self._began = False

    def __iter__(self) -> Lookahead:
        return self

    def __next__(self) -> PlannedBatch:
        self._fill()
        if not self._queue:
            if self._windows is not None:
                self._carried += self._windows.hand_over()
            self._stager.carry(self._carried)
            self._carried = []
            raise StopIteration
        planned, blocks = self._queue.popleft()
        self._uncount(blocks)
        return planned

    def blocks(self, planned: PlannedBatch) -> Numbers:
        """Returns the blocks of a yielded batch. Its reader has to call the stager's `done`."""
        return self._stager.blocks.of(planned.rows)

    def finished(self, planned: PlannedBatch) -> None:
        """Records that a batch was delivered."""
        self._done = max(self._done, planned.next_position)
        self._stager.tell(self._forecast, self._done, self._ahead)

    def close(self) -> None:
        """Releases the blocks of batches that were not yielded."""
        self._plan = self._next_plan = self._following = None
        queue, self._queue = self._queue, deque()
        carried, self._carried = self._carried, []
        if self._windows is not None:
            self._windows.close(self._stager.generation is self._generation)
        if self._stager.generation is not self._generation:
            return
        for blocks in (*(blocks for _, blocks in queue), *carried):
            self._stager.done(blocks)

    def _fill(self) -> None:
        while self._plan is not None and not self._full():
            planned = next(self._plan, None)
            if planned is None:
                self._plan = None
                if self._following is not None:
                    self._next_plan = self._following()
                break
            blocks = self._want(planned)
            self._queue.append((planned, blocks))
            self._ahead = planned.next_position
        if self._windows is not None:
            self._windows.reach(self._ahead)
        while self._next_plan is not None and not self._full():
            planned = next(self._next_plan, None)
            if planned is None:
                self._next_plan = None
                break
            self._carried.append(self._want(planned))
            if self._forecast.orders is not None:
                self._ahead = self._forecast.orders.rows + planned.next_position
        if not self._began:
            self._began = True
            self._stager.carry([])
            self._stager.tell(self._forecast, self._done, self._ahead)

    def _full(self) -> bool:
        enough = len(self._counts) * self._stager.blocks.mean_bytes >= self._ahead_bytes
        return bool(self._queue or self._carried) and (
            enough or len(self._queue) + len(self._carried) >= self._most_batches
        )

    def _want(self, planned: PlannedBatch) -> Numbers:
        blocks = self._stager.blocks.of(np.asarray(planned.rows, np.int64))
        self._stager.want(blocks)
        self._counts.update(blocks.tolist())
        return blocks

    def _uncount(self, blocks: Numbers) -> None:
        for block in blocks.tolist():
            self._counts[block] -= 1
            if self._counts[block] <= 0:
                del self._counts[block]

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
