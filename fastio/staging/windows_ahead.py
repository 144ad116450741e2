"""Shards of the windows to come, asked for a window ahead of the batches that need them.

A window of shards may have hundreds of thousands of rows. Planning its batches to find out which
shards the next window has would take longer than knowing how windows follow one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from fastio.order import Order, Orders, ShardOrder
from fastio.staging.stager import Numbers, Stager

_LEAST_AHEAD = 2  # shards behind the window that is read
Span = tuple[int, Numbers]  # the position behind its last, and its shards


class WindowsAhead:
    """Wants the shards of the windows behind the one that is read. Used by one thread at a time.

    Args:
        spans: the windows, in order.
        stager: which is asked.
        ahead_bytes: of shards that are wanted here.
    """

    def __init__(self, spans: Sequence[Span], stager: Stager, ahead_bytes: int) -> None:
        self._stager = stager
        least = (len(spans[0][1]) + _LEAST_AHEAD) * stager.blocks.mean_bytes
        self._ahead_bytes = max(ahead_bytes, least)
        self._spans = deque(spans)
        self._wanted: deque[Span] = deque()

    def reach(self, position: int) -> None:
        """Batches up to a position of the epoch are planned."""
        while self._wanted and self._wanted[0][0] <= position:
            self._stager.done(self._wanted.popleft()[1])
        while self._spans and self._spans[0][0] <= position:
            self._spans.popleft()
        shards = sum(len(shards) for _, shards in self._wanted)
        while self._spans and shards * self._stager.blocks.mean_bytes < self._ahead_bytes:
            span = self._spans.popleft()
            self._stager.want(span[1])
            self._wanted.append(span)
            shards += len(span[1])

    def hand_over(self) -> list[Numbers]:
        """What is wanted of the next epoch, for somebody else to let go of."""
        wanted, self._wanted = self._wanted, deque()
        self._spans.clear()
        return [shards for _, shards in wanted]

    def close(self, give_back: bool) -> None:
        """Lets go of what was wanted; of nothing where the stager was opened anew meanwhile."""
        self._spans.clear()
        wanted, self._wanted = self._wanted, deque()
        if give_back:
            for _, shards in wanted:
                self._stager.done(shards)


def windows_ahead(
    orders: Orders | None, epoch: int, stager: Stager, ahead_bytes: int, goes_on: bool
) -> WindowsAhead | None:
    """What asks for windows ahead; None where an order has none of shards.

    Args:
        orders: of all epochs; None: not known.
        epoch: of the run.
        stager, ahead_bytes: as for `WindowsAhead`.
        goes_on: whether the next epoch follows, whose first window comes behind the last one then.
    """
    if orders is None or orders.bounds is None:
        return None
    spans = _spans(orders, epoch)
    if goes_on:
        spans += [(orders.rows + end, shards) for end, shards in _spans(orders, epoch + 1)[:1]]
    return WindowsAhead(spans, stager, ahead_bytes) if spans else None


def _spans(orders: Orders, epoch: int) -> list[Span]:
    """The windows of an epoch; none where each batch has rows from anywhere."""
    order = orders.epoch(epoch)
    if isinstance(order, ShardOrder):
        return order.spans()
    if isinstance(order, Order) and order.mode == "sequential":
        assert orders.bounds is not None
        ends = orders.bounds[1:]
        return [(end, np.array([shard], np.int64)) for shard, end in enumerate(ends)]
    return []
