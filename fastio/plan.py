"""An order cut in batches: which rows a rank gets at which step.

A global batch is `batch_size * world_size` consecutive positions of the order; rank r has the r-th
part of it. So the samples of a step, taken over all ranks, depend on the global batch size alone,
and every rank makes the same number of steps by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio.order import Order


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of one rank, before anything is read.

    Attributes:
        step: number of the batch among those of this plan, from 0.
        rows: int64 (n,), global row numbers.
        valid: how many of them count; the rest, at the end, repeat rows of the epoch so that every
            rank has as many.
        next_position: samples of the epoch, over all ranks, that are done with this batch.
    """

    step: int
    rows: npt.NDArray[np.int64]
    valid: int
    next_position: int


@dataclass(frozen=True)
class Plan:
    """The batches of one rank in one epoch. Iterating yields them in order.

    Args:
        order: the epoch's order.
        batch_size: rows of a batch on each rank.
        drop_last: leave out the last global batch if it is not full. Otherwise its samples are
            spread evenly over the ranks, and ranks that would have fewer are padded with rows from
            the epoch's beginning (`PlannedBatch.valid` tells).
        rank, world_size: of this process.
        start: position to begin at: samples of the epoch, over all ranks, done before.
    """

    order: Order
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not in [0, world_size {self.world_size})")
        if not 0 <= self.start <= self.order.rows:
            raise ValueError(f"start {self.start} is not in [0, {self.order.rows}]")

    @property
    def global_batch(self) -> int:
        """Samples of a full step over all ranks."""
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        left = self.order.rows - self.start
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def batch(self, step: int) -> PlannedBatch:
        """The batch of a step in [0, len(self))."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is not in [0, {len(self)})")
        begin = self.start + step * self.global_batch
        end = min(begin + self.global_batch, self.order.rows)
        share = -(-(end - begin) // self.world_size)
        first = begin + self.rank * share
        positions = np.arange(first, first + share, dtype=np.int64)
        valid = max(0, min(share, end - first))
        if valid < share:  # padded from the epoch's beginning
            positions[valid:] %= self.order.rows
        rows = self.order.at(positions)
        return PlannedBatch(step, rows, valid, end)

    def __iter__(self) -> Iterator[PlannedBatch]:
        return (self.batch(step) for step in range(len(self)))


def follow(batches: Iterable[Iterable[int]], rows: int, start: int = 0) -> Iterator[PlannedBatch]:
    """The batches of somebody's batch sampler as a plan.

    Args:
        batches: lists of row numbers; negative ones count from the end.
        rows: of the dataset.
        start: samples done before, for `PlannedBatch.next_position`.

    Raises:
        IndexError: a row number is out of range.
    """
    position = start
    for step, batch in enumerate(batches):
        numbers = np.asarray(list(batch), np.int64).reshape(-1)
        if numbers.size and not -rows <= int(numbers.min()) <= int(numbers.max()) < rows:
            raise IndexError(
                f"the sampler gave a row outside [0, {rows}): "
                f"{int(numbers.min())} to {int(numbers.max())}"
            )
        position += len(numbers)
        yield PlannedBatch(
            step, np.where(numbers < 0, numbers + rows, numbers), len(numbers), position
        )
