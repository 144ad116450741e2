"""Requests the shards of the next windows one window before the batches that need them.

A window of shards may have hundreds of thousands of rows. Planning its batches only to find the
next window's shards would take longer than computing the sequence of windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from fastio.order.order import Order, Orders, ShardOrder
from fastio.stage.stager import Numbers, Stager

_LEAST_AHEAD = 2  # shards beyond the current window
Span = tuple[int, Numbers]  # the position after a window's last row, and the window's shards


class WindowsAhead:
    """Requests the shards of the windows after the current one. Used by one thread at a time.

    Args:
        spans: The windows, in order.
        stager: The stager that fetches the shards.
        ahead_bytes: The size of the shards that may be requested ahead.
    """

    def __init__(self, spans: Sequence[Span], stager: Stager, ahead_bytes: int) -> None:
        self._stager = stager
        least = (len(spans[0][1]) + _LEAST_AHEAD) * stager.blocks.mean_bytes
        self._ahead_bytes = max(ahead_bytes, least)
        self._spans = deque(spans)
        self._wanted: deque[Span] = deque()

    def reach(self, position: int) -> None:
        """Requests and releases windows, given that batches up to a position are planned."""
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
        """Returns the requested shards of the next epoch. The caller has to release them."""
        wanted, self._wanted = self._wanted, deque()
        self._spans.clear()
        return [shards for _, shards in wanted]

    def close(self, give_back: bool) -> None:
        """Forgets the requested shards; releases them too unless the stager was reopened."""
        self._spans.clear()
        wanted, self._wanted = self._wanted, deque()
        if give_back:
            for _, shards in wanted:
                self._stager.done(shards)


def windows_ahead(
    orders: Orders | None, epoch: int, stager: Stager, ahead_bytes: int, goes_on: bool
) -> WindowsAhead | None:
    """Returns an object that requests windows ahead; None if the order has no windows of shards.

    Args:
        orders: The orders of all epochs; None if they are unknown.
        epoch: The current epoch.
        stager, ahead_bytes: As for `WindowsAhead`.
        goes_on: Whether the next epoch follows. If so, its first window follows the last one.
    """
    if orders is None or orders.bounds is None:
        return None
    spans = _spans(orders, epoch)
    if goes_on:
        spans += [(orders.rows + end, shards) for end, shards in _spans(orders, epoch + 1)[:1]]
    return WindowsAhead(spans, stager, ahead_bytes) if spans else None


def _spans(orders: Orders, epoch: int) -> list[Span]:
    """Returns the windows of an epoch; none if each batch has rows from anywhere."""
    order = orders.epoch(epoch)
    if isinstance(order, ShardOrder):
        return order.spans()
    if isinstance(order, Order) and order.mode == "sequential":
        assert orders.bounds is not None
        ends = orders.bounds[1:]
        return [(end, np.array([shard], np.int64)) for shard, end in enumerate(ends)]
    return []
