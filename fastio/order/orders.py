"""The orders of all epochs of a run, and orders of picked rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastio.order.order import Indices, Mode, Order, ShardOrder
from fastio.order.partitions import PartitionedOrder

Permutation = Indices | npt.NDArray[np.int32]


class PickedOrder:
    """An order of picked rows of a dataset: the rows of another order are indices into their list.

    If the other order is sequential, the rows come in the order of the list, for example of a
    permutation that a generator drew.

    Args:
        order: order of as many rows as are picked.
        picked: int64 or int32 (order.rows,), rows of the dataset.

    Attributes:
        rows, seed, epoch, partitions: those of the other order.
    """

    rows: int
    seed: int
    epoch: int
    partitions: int

    def __init__(self, order: AnyOrder, picked: Permutation) -> None:
        self.rows, self.seed, self.epoch = order.rows, order.seed, order.epoch
        self.partitions = order.partitions
        self._order, self._picked = order, picked

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, as `Order.at`."""
        return self._picked[self._order.at(positions)].astype(np.int64, copy=False)

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at consecutive positions, as `Order.span`."""
        return self._picked[self._order.span(first, count)].astype(np.int64, copy=False)


AnyOrder = Order | ShardOrder | PartitionedOrder | PickedOrder


@dataclass(frozen=True)
class Orders:
    """The orders of all epochs.

    Args:
        rows, seed, block, window: as in `Order`.
        mode: as in `Order`; or "settle": "window" in epoch 0, in which remote data is fetched, and
            "shuffle" in later epochs, when it is cached.
        bounds: first row of each shard, and the number of rows; windows then consist of shards
            instead of blocks, see `ShardOrder`.
        partitions: number of partitions, see `PartitionedOrder`; 1 unless rows are shuffled by
            windows.
    """

    rows: int
    seed: int = 0
    mode: Mode | Literal["settle"] = "shuffle"
    block: int = 64
    window: int = 64
    bounds: tuple[int, ...] | None = None
    partitions: int = 1

    def epoch(self, epoch: int) -> Order | ShardOrder | PartitionedOrder:
        """Returns the order of an epoch."""
        mode = self.mode
        if mode == "settle":
            mode = "shuffle" if epoch else "window"
        # This also applies to later epochs of "settle": a node has cached only the rows of its
        # partition.
        if self.partitions > 1 and self.rows and mode != "sequential":
            return PartitionedOrder(
                self.rows,
                self.seed,
                epoch,
                mode=mode,
                block=self.block,
                window=self.window,
                partitions=self.partitions,
                bounds=self.bounds,
            )
        if mode == "window" and self.bounds is not None:
            return ShardOrder(self.bounds, self.seed, epoch, self.window)
        return Order(self.rows, self.seed, epoch, mode, self.block, self.window)
