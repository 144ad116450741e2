"""Predicts when a block is needed next, which is arithmetic because the order is known.

Runs record in the cache's index the parameters of their order and their position. From these, any
process can rank any block. Evicting what is needed furthest in the future is optimal (L. Belady, "A
study of replacement algorithms for a virtual-storage computer", IBM Systems Journal, 1966).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fastio.cache import Consumer
from fastio.order.order import Order, ShardOrder
from fastio.order.orders import Orders
from fastio.order.partitions import PartitionedOrder
from fastio.runtime.properties import cached_property
from fastio.stage.blocks import Numbers

Distances = npt.NDArray[np.float64]
_AnyOrder = Order | ShardOrder | PartitionedOrder
# Errors that parsing a damaged forecast, or one of another version of fastio, may raise.
_DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, MemoryError, zlib.error),
)
_KEPT = 16  # forecasts of other runs that were parsed
_LOOKED_AT = 64  # sampled rows of a shard whose rows may be needed at any time


@dataclass(frozen=True)
class Forecast:
    """The parameters from which a run's next uses are computed.

    Attributes:
        orders: The orders of all epochs; None if a user's sampler decides.
        epoch: The current epoch of the run.
        block_rows: The number of rows in a block of the cache. If 0, the pieces are shards, whose
            bounds are in the orders, or heads of shards.
    """

    orders: Orders | None
    epoch: int
    block_rows: int

    @cached_property
    def text(self) -> str:
        """JSON for other processes: some hundred bytes, and 1 to 2 bytes per shard."""
        orders = None
        if self.orders is not None:
            orders = {each.name: getattr(self.orders, each.name) for each in fields(self.orders)}
            bounds = orders["bounds"]
            orders["bounds"] = None if bounds is None else _packed(bounds)
        about = {"orders": orders, "epoch": self.epoch, "block_rows": self.block_rows}
        return json.dumps(about)

    @staticmethod
    @lru_cache(_KEPT)
    def of_text(text: str) -> Forecast:
        """Parses a `text`. The results are cached, because a process parses the same text often.

        Raises:
            ValueError, KeyError, TypeError, zlib.error: If it is something else.
        """
        parsed = json.loads(text)
        orders = parsed["orders"]
        if orders is not None:
            bounds = orders["bounds"]
            orders = Orders(**{**orders, "bounds": None if bounds is None else _unpacked(bounds)})
        return Forecast(orders, int(parsed["epoch"]), int(parsed["block_rows"]))

    @cached_property
    def _current(self) -> _AnyOrder:
        assert self.orders is not None
        return self.orders.epoch(self.epoch)

    @cached_property
    def _following(self) -> _AnyOrder:
        assert self.orders is not None
        return self.orders.epoch(self.epoch + 1)

    def next_use(self, position: int, ahead: int, numbers: Numbers) -> Distances:
        """Returns the number of samples until blocks are needed; -1: in use; infinite: unknown.

        Args:
            position: The number of samples of the epoch that are done.
            ahead: Blocks that are needed before this position count as in use.
            numbers: int64 (n,), the blocks.
        """
        by_shard = self.orders is not None and self.orders.bounds is not None
        if not self.block_rows and not by_shard:
            return np.full(len(numbers), -1.0)
        if self.orders is None or not self.orders.rows:
            return np.full(len(numbers), np.inf)
        rows = self.orders.rows
        known = self._has_rows(self.orders, numbers)
        inside = np.where(known, numbers, 0)
        at = self._from(self._current, position, inside)
        later = ~np.isfinite(at)
        if later.any():
            at[later] = rows + self._from(self._following, 0, inside[later])
        distance = np.where(at < max(ahead, position + 1), -1.0, at - position)
        return np.where(known, distance, np.inf)

    def _from(self, order: _AnyOrder, position: int, numbers: Numbers) -> Distances:
        """Returns the first position from `position` on that needs each block; infinite if none."""
        # A shard order has blocks of no rows, as this forecast has if its pieces are shards.
        if order.block != self.block_rows or order.mode == "shuffle":
            by_rows = self._by_rows if self.block_rows else self._by_shards
            return by_rows(order, position, numbers)
        begins, ends = order.window_of(numbers)
        at = np.maximum(begins, position).astype(np.float64)
        at[ends <= position] = np.inf
        return at

    def _has_rows(self, orders: Orders, numbers: Numbers) -> npt.NDArray[np.bool_]:
        if self.block_rows or orders.bounds is None:
            return numbers * self.block_rows < orders.rows
        bounds = np.array(orders.bounds, np.int64)
        inside = np.minimum(numbers, len(bounds) - 2)
        there: npt.NDArray[np.bool_] = np.logical_and(
            bounds[inside] < bounds[inside + 1], inside == numbers
        )
        return there

    def _by_shards(self, order: _AnyOrder, position: int, numbers: Numbers) -> Distances:
        """Estimates the next use of shards in an order not by shards, from evenly spaced rows."""
        assert self.orders is not None
        assert self.orders.bounds is not None
        bounds = np.array(self.orders.bounds, np.int64)
        first, last = bounds[numbers], bounds[numbers + 1] - 1
        if order.mode == "sequential":
            at = np.maximum(first, position).astype(np.float64)
            at[last < position] = np.inf
            return at
        steps = np.arange(_LOOKED_AT) / (_LOOKED_AT - 1)
        rows = first[:, None] + ((last - first)[:, None] * steps).astype(np.int64)
        return _first_after(order, np.clip(rows, 0, order.rows - 1), position)

    def _by_rows(self, order: _AnyOrder, position: int, numbers: Numbers) -> Distances:
        rows = numbers[:, None] * self.block_rows + np.arange(self.block_rows)
        return _first_after(order, np.minimum(rows, order.rows - 1), position)


def _packed(bounds: Sequence[int]) -> str:
    """Returns ascending numbers as text, which is short if their differences are similar."""
    sizes = np.diff(np.array(bounds, np.int64), prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(sizes.tobytes())).decode()


def _unpacked(text: str) -> tuple[int, ...]:
    sizes = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
    return tuple(np.cumsum(sizes).tolist())


def _first_after(order: _AnyOrder, rows: Numbers, position: int) -> Distances:
    """Returns, for each line of rows (n, m), the first position from `position` on: (n,)."""
    at = order.positions(rows.reshape(-1)).reshape(rows.shape).astype(np.float64)
    at[at < position] = np.inf
    least: Distances = at.min(axis=1)
    return least


def next_use(runs: Sequence[Consumer], numbers: Numbers) -> Distances:
    """Returns the number of samples until any run needs each piece; see `Forecast`."""
    least = np.full(len(numbers), np.inf)
    for run in runs:
        try:
            forecast = Forecast.of_text(run.forecast)
            until = forecast.next_use(run.position, run.ahead, numbers)
        except _DAMAGE:
            continue
        least = np.minimum(least, until)
    return least
