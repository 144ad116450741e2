"""Plans whose batches have rows of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastio.order.order import Indices, Order
from fastio.order.orders import AnyOrder
from fastio.order.plan import Plan, PlannedBatch, classes
from fastio.packed.grouping import grouped, starts_of


class Lengths(Protocol):
    """The lengths of rows: an array int32 (rows,), or an object that is indexed like one."""

    def __getitem__(self, rows: Indices, /) -> Any: ...


@dataclass(frozen=True)
class PickedLengths:
    """The lengths of picked rows; see `Lengths`.

    Attributes:
        lengths: lengths of all rows.
        picked: int64 (n,), rows.
    """

    lengths: Lengths
    picked: Indices

    def __getitem__(self, places: Indices, /) -> Any:
        return self.lengths[self.picked[places]]


@dataclass(frozen=True)
class JoinedLengths:
    """The lengths of the rows of datasets one after the other; see `Lengths`.

    Attributes:
        lengths: lengths of each dataset's rows.
        first_row: int64 (datasets,), the number of each dataset's first row.
    """

    lengths: Sequence[Lengths]
    first_row: Indices

    def __getitem__(self, rows: Indices, /) -> npt.NDArray[np.int32]:
        found = np.empty(len(rows), np.int32)
        numbers = np.searchsorted(self.first_row, rows, side="right") - 1
        for number, here in grouped(numbers):
            found[here] = self.lengths[number][rows[here] - self.first_row[number]]
        return found


@dataclass(frozen=True)
class Buckets:
    """Settings for batches with rows of similar lengths.

    Attributes:
        lengths: lengths of the rows.
        pool: number of global batches whose rows are sorted together.
    """

    lengths: Lengths
    pool: int

    def of(self, picked: Indices | None) -> Buckets:
        """Returns the settings for picked rows, int64 (n,); None for all rows."""
        return self if picked is None else Buckets(PickedLengths(self.lengths, picked), self.pool)


@dataclass(frozen=True)
class BucketPlan:
    """A plan whose global batches have rows of similar lengths; otherwise like `Plan`.

    The rows of each `buckets.pool` global batches of the order are sorted by length and cut into
    global batches, which are delivered in shuffled order; a batch that is not full comes last. If
    the order has partitions, the rows of each one are sorted and cut separately, and a global batch
    has as many rows of each partition as in `Plan`. The samples of a step depend on the global
    batch size only, as in `Plan`, and an epoch can be resumed exactly with the same global batch
    size.

    Args:
        plan: order divided into batches; its start is the beginning of a global batch.
        buckets: lengths and pool.
    """

    plan: Plan
    buckets: Buckets

    def __post_init__(self) -> None:
        if self.plan.start % self.plan.global_batch and self.plan.start < self.plan.order.rows:
            raise ValueError(f"start {self.plan.start} is not the beginning of a global batch")

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def pool_rows(self) -> int:
        """The number of positions per pool; pools start at multiples of it."""
        return self.buckets.pool * self.plan.global_batch

    def __iter__(self) -> Iterator[PlannedBatch]:
        return _Batches(self)

    def pool(self, step: int) -> _Pool:
        """Returns the pool that has the batch of a step."""
        plan, pool_rows = self.plan, self.pool_rows
        first = (plan.start + step * plan.global_batch) // pool_rows * pool_rows
        last = min(first + pool_rows, plan.order.rows)
        return _Pool(plan.order, self.buckets.lengths, plan.global_batch, first, last)

    def batch(self, step: int, pool: _Pool) -> PlannedBatch:
        """Returns this rank's part of the batch of a step in [0, len(self)), which the pool has."""
        plan = self.plan
        place = pool.place(plan.start + step * plan.global_batch)
        sizes = pool.sizes[place]
        count = int(sizes.sum())
        share = -(-count // plan.world_size)
        mine = np.arange(plan.rank * share, (plan.rank + 1) * share)
        added = mine >= count  # padded with rows of the partition that this rank reads
        partition = plan.rank * len(sizes) // plan.world_size
        size = int(sizes[partition])
        mine[added] -= count
        if size:
            mine[added] = mine[added] % size + int(sizes[:partition].sum())
        mine[added] %= count
        end = plan.start + step * plan.global_batch + count
        return PlannedBatch(step, pool.rows(place, mine), int(np.count_nonzero(~added)), end)


class _Batches:
    """The batches of a plan in order.

    If the lengths of a batch's rows cannot be read, an error is raised, and the next call tries the
    same batch again. A generator would end the epoch instead.
    """

    def __init__(self, plan: BucketPlan) -> None:
        self._plan, self._step = plan, 0
        self._pool: _Pool | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> PlannedBatch:
        if self._step >= len(self._plan):
            raise StopIteration
        begin = self._plan.plan.start + self._step * self._plan.plan.global_batch
        if self._pool is None or begin >= self._pool.last:
            self._pool = self._plan.pool(self._step)
        batch = self._plan.batch(self._step, self._pool)
        self._step += 1
        return batch


class _Pool:
    """Consecutive global batches of an order, among which the rows are divided again by length.

    Each batch keeps its number of rows of each partition. The rows of each partition are sorted by
    length and cut separately, so a rank looks up only the lengths of rows of its own partitions.

    Args:
        order: order of the epoch.
        lengths: lengths of the rows.
        size: number of positions of a full global batch.
        first, last: the positions [first, last) of the pool.

    Attributes:
        last: as given.
        sizes: int64 (batches, partitions), the rows of each partition in each batch.
    """

    def __init__(self, order: AnyOrder, lengths: Lengths, size: int, first: int, last: int) -> None:
        self._order, self._lengths = order, lengths
        self._size, self._first, self.last = size, first, last
        begins = range(first, last, size)
        ends = [min(begin + size, last) for begin in begins]
        cut = [classes(order.partitions, 1, *each)[1] for each in zip(begins, ends, strict=True)]
        self.sizes: Indices = np.stack(cut)
        self._full = (last - first) // size
        # The sorted batches are delivered in shuffled order.
        turns = Order(self._full, order.seed, order.epoch + first).span(0, self._full)
        # The batch with turn t gets the t-th part of the sorted rows. How many rows of each
        # partition it has depends on its place in the order, so the sizes are summed in sorted
        # order.
        by_length = self.sizes[np.argsort(turns)]
        self._offsets = (np.cumsum(by_length, axis=0) - by_length)[turns]
        self._sorted: dict[int, tuple[Indices, Indices]] = {}

    def place(self, begin: int) -> int:
        """Returns the number of the batch that begins at a position."""
        return (begin - self._first) // self._size

    def rows(self, place: int, wanted: Indices) -> Indices:
        """Returns some rows of a batch, sorted by partition and then by length.

        Args:
            place: number of the batch in the pool.
            wanted: int64 (n,), indices into the batch's rows.
        """
        starts = starts_of(self.sizes[place])
        numbers = np.searchsorted(starts, wanted, side="right") - 1
        found = np.empty(len(wanted), np.int64)
        for number, here in grouped(numbers):
            kept, left = self._partition(number)
            turns = wanted[here] - starts[number]
            if place < self._full:
                found[here] = kept[self._offsets[place, number] + turns]
            else:
                found[here] = left[turns]
        return found

    def _partition(self, number: int) -> tuple[Indices, Indices]:
        """Returns the rows of a partition sorted by length: those of full batches, and the others.

        The rows of a last, smaller batch are drawn; else it would always have the longest rows.
        """
        found = self._sorted.get(number)
        if found is None:
            order, partitions = self._order, self._order.partitions
            if partitions == 1:
                rows = order.span(self._first, self.last - self._first)
            else:
                begin = self._first + (number - self._first) % partitions
                rows = order.at(np.arange(begin, self.last, partitions))
            rows = rows[np.argsort(self._lengths[rows], kind="stable")]
            # These rows are left for the last batch, which is smaller.
            skipped = int(self.sizes[self._full :, number].sum())
            drawn = Order(len(rows), order.seed + number, order.epoch + self._first)
            left = np.zeros(len(rows), np.bool_)
            left[drawn.span(0, skipped)] = True
            found = self._sorted[number] = rows[~left], rows[left]
        return found
