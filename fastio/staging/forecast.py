"""When a block will be needed next: the order is known, so the future is arithmetic.

Runs tell each other in the cache's index what their orders are computed from and where they stand;
from that any process ranks any block. Deleting what is needed furthest in the future is optimal (L.
Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal,
1966).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fastio.cache import Run
from fastio.order import Order, Orders, ShardOrder

Numbers = npt.NDArray[np.int64]
Distances = npt.NDArray[np.float64]
_LOOKED_AT = 64  # rows of a shard that may be needed at any time


@dataclass(frozen=True)
class Forecast:
    """What a run's needs are computed from.

    Attributes:
        orders: of all epochs; None where somebody's sampler decides.
        epoch: the run's.
        block_rows: rows of a block of the cache; 0: the pieces are shards, of which the orders
            know the bounds, or else their heads.
    """

    orders: Orders | None
    epoch: int
    block_rows: int

    def to_json(self) -> str:
        """As other processes read it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Forecast:
        """What `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        parsed = json.loads(text)
        orders = parsed["orders"]
        return cls(
            None if orders is None else Orders(**orders),
            int(parsed["epoch"]),
            int(parsed["block_rows"]),
        )

    def next_use(self, position: int, ahead: int, numbers: Numbers) -> Distances:
        """How many samples until blocks are needed; -1 in use, infinite if not known.

        Args:
            position: samples of the epoch that are done.
            ahead: blocks that are needed before this position are in use already.
            numbers: int64 (n,), of blocks.
        """
        by_shard = self.orders is not None and self.orders.bounds is not None
        if not self.block_rows and not by_shard:
            return np.full(len(numbers), -1.0)
        if self.orders is None or not self.orders.rows:
            return np.full(len(numbers), np.inf)
        rows = self.orders.rows
        known = self._has_rows(self.orders, numbers)
        inside = np.where(known, numbers, 0)
        at = self._from(self.orders.epoch(self.epoch), position, inside)
        later = ~np.isfinite(at)
        if later.any():
            following = self.orders.epoch(self.epoch + 1)
            at[later] = rows + self._from(following, 0, inside[later])
        distance = np.where(at < max(ahead, position + 1), -1.0, at - position)
        return np.where(known, distance, np.inf)

    def _from(self, order: Order | ShardOrder, position: int, numbers: Numbers) -> Distances:
        """The first position not before `position` that needs each block; infinite if none does."""
        if isinstance(order, ShardOrder):
            begins, ends = order.window_of(numbers)
        elif not self.block_rows:
            return self._by_shards(order, position, numbers)
        elif order.mode == "shuffle" or order.block != self.block_rows:
            return self._by_rows(order, position, numbers)
        else:
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

    def _by_shards(self, order: Order, position: int, numbers: Numbers) -> Distances:
        """Of shards under an order that is not by shards: by some of their rows, evenly apart."""
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

    def _by_rows(self, order: Order, position: int, numbers: Numbers) -> Distances:
        rows = numbers[:, None] * self.block_rows + np.arange(self.block_rows)
        return _first_after(order, np.minimum(rows, order.rows - 1), position)


def _first_after(order: Order, rows: Numbers, position: int) -> Distances:
    """Of each line of rows, (n, m), the first position that is not before `position`, (n,)."""
    at = order.positions(rows.reshape(-1)).reshape(rows.shape).astype(np.float64)
    at[at < position] = np.inf
    least: Distances = at.min(axis=1)
    return least


def next_use(runs: Sequence[Run], numbers: Numbers) -> Distances:
    """How many samples until pieces of a source are needed by any of its runs; see `Forecast`."""
    least = np.full(len(numbers), np.inf)
    for run in runs:
        try:
            forecast = Forecast.from_json(run.forecast)
            until = forecast.next_use(run.position, run.ahead, numbers)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError):
            continue  # another version's: it says nothing to us
        least = np.minimum(least, until)
    return least
