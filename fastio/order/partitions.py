"""An order in partitions, so that each node of a training reads its own part of the data.

Runs of blocks, or the shards, of the dataset are put in a random order that is the same in every
epoch, and the rows of this sequence are divided into partitions of equal size. A run has up to 64
blocks, because a node reads the head of each shard that it has rows of. In every epoch, the rows of
each partition are shuffled anew, as those of a whole dataset are. Position p of an epoch belongs to
partition `p % partitions`, so that each global batch has equally many rows of each partition, and
the samples of a step are the same for any number of ranks. `Plan` gives each rank the positions of
its own partition.

A block or shard at the boundary of two partitions has rows of both, and is read by both nodes:
there are at most `partitions - 1` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.order.order import Indices, Order, ShardOrder, ShardSequence, inside, mixed_seed
from fastio.packed.grouping import grouped

# Seeds of the sequence, which no epoch has, and of the partitions.
_SEQUENCE = 1 << 62
_PARTITION = 1 << 63


# The most consecutive blocks that stay together, and the fewest such runs in a partition.
_RUN_BLOCKS = 64
_LEAST_RUNS = 16


class RunSequence:
    """The rows of runs, one run after the other in a random order; computed, without a table.

    The last run is the last one of the sequence if it is shorter than the others.

    Args:
        rows: number of rows of the dataset.
        run: number of rows per run of consecutive rows.
        seed: seed of the order of the runs.
    """

    def __init__(self, rows: int, run: int, seed: int) -> None:
        self._run = run
        self._runs = Order(rows // run, seed)

    def rows(self, places: Indices) -> Indices:
        """Returns the rows at places of the sequence, both int64 (n,)."""
        return self._moved(places, self._runs.at)

    def places(self, rows: Indices) -> Indices:
        """Returns the places of rows in the sequence, both int64 (n,)."""
        return self._moved(rows, self._runs.positions)

    def _moved(self, numbers: Indices, to: Callable[[Indices], Indices]) -> Indices:
        runs, within = np.divmod(numbers, self._run)
        # A shorter last run stays where it is: exchanging it with another one would shift the runs
        # between the two.
        whole = runs < self._runs.rows
        runs[whole] = to(runs[whole])
        return runs * self._run + within


class _Partition(NamedTuple):
    """One partition: the order of its rows, which it numbers from 0.

    Attributes:
        order: the order.
        first: place of its first row in the sequence.
        shift: its row r is at place `first + (r + shift) % order.rows`. Its blocks then are blocks
            of the dataset, except for the last ones, which it shares with its neighbours.
        shards: int64 (n,), the shards whose rows it has; None for blocks.
    """

    order: Order | ShardOrder
    first: int
    shift: int = 0
    shards: Indices | None = None

    def rows(self, places: Indices) -> Indices:
        """Returns the rows of the partition at places of the sequence."""
        return (places - self.first - self.shift) % self.order.rows

    def places(self, rows: Indices) -> Indices:
        """Returns the places of rows of the partition in the sequence."""
        return self.first + (rows + self.shift) % self.order.rows

    def windows(self, rows: Indices) -> tuple[Indices, Indices]:
        """Returns the range of the partition's positions in which each row's window lies."""
        if isinstance(self.order, ShardOrder):
            return self.order.window_of(self.order.shards_of(rows))
        return self.order.window_of(rows // self.order.block)


class PartitionedOrder:
    """The order of one epoch, in partitions. Immutable, so safe to use from several threads.

    Args:
        rows, seed, epoch, block, window: as in `Order`; `window` as in `ShardOrder` if there are
            bounds.
        mode: "window" or "shuffle": the mode of the order within each partition.
        partitions: number of partitions.
        bounds: first row of each shard, and the number of rows, if windows consist of shards; then
            `block` has no effect.

    Attributes:
        rows, seed, epoch, mode, partitions: as given.
        block: number of rows per block; 0 if windows consist of shards.
    """

    def __init__(
        self,
        rows: int,
        seed: int,
        epoch: int,
        *,
        mode: Literal["window", "shuffle"],
        block: int,
        window: int,
        partitions: int,
        bounds: Sequence[int] | Indices | None = None,
    ) -> None:
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, got {partitions}")
        self.rows, self.seed, self.epoch = rows, seed, epoch
        self.mode: Literal["window", "shuffle"] = mode
        self.partitions = partitions
        self.block = block if bounds is None else 0
        self._window = window
        of_all = mixed_seed(seed, _SEQUENCE)
        self._bounds = None if bounds is None else np.asarray(bounds, np.int64)
        self._sequence: RunSequence | ShardSequence
        if self._bounds is None:
            blocks = rows // (block * partitions * _LEAST_RUNS)
            run = block * max(1, min(_RUN_BLOCKS, blocks))
            self._sequence = RunSequence(rows, run, of_all)
        else:
            self._sequence = ShardSequence(self._bounds, of_all, 0)
        self._made: dict[int, _Partition] = {}

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, as `Order.at`."""
        turns, numbers = np.divmod(inside(positions, self.rows, "position"), self.partitions)
        places = np.empty_like(turns)
        for part, here in self._each(numbers):
            places[here] = part.places(part.order.at(turns[here]))
        return self._sequence.rows(places)

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at consecutive positions, as `Order.span`."""
        return self.at(np.arange(first, first + count, dtype=np.int64))

    def positions(self, rows: npt.ArrayLike) -> Indices:
        """Returns the positions of rows, as `Order.positions`."""
        places = self._sequence.places(inside(rows, self.rows, "row"))
        numbers = self._partitions_at(places)
        turns = np.empty_like(places)
        for part, here in self._each(numbers):
            turns[here] = part.order.positions(part.rows(places[here]))
        return turns * self.partitions + numbers

    def window_of(self, blocks: npt.ArrayLike) -> tuple[Indices, Indices]:
        """Returns the range of positions of each block's or shard's window, as `Order.window_of`.

        One at the boundary of two partitions has windows in both, and the range contains them. One
        that contains a whole partition has the range of all positions.
        """
        blocks = np.asarray(blocks, np.int64)
        if self._bounds is None:
            firsts, after = blocks * self.block, np.minimum((blocks + 1) * self.block, self.rows)
        else:
            firsts, after = self._bounds[blocks], self._bounds[blocks + 1]
        begin = self._sequence.places(np.minimum(firsts, self.rows - 1))
        last = begin + np.maximum(after - firsts, 1) - 1
        numbers = self._partitions_at(last)
        # A block that begins in one partition and ends in the next belongs to a window in each.
        # They are found from its first row, its first row in the last partition, and its last row.
        cut = np.maximum(begin, self._first(numbers))
        begins, ends = np.stack([self._windows(places) for places in (begin, cut, last)], axis=1)
        # If there is a whole partition in between, windows of that partition would have to be
        # included, so the range of all rows is returned.
        whole = numbers - self._partitions_at(begin) > 1
        return np.where(whole, 0, begins.min(axis=0)), np.where(whole, self.rows, ends.max(axis=0))

    def spans(self, partitions: Iterable[int]) -> Iterator[tuple[int, Indices]]:
        """Yields the windows of partitions, as `ShardOrder.spans`, ordered by their ends."""
        with_rows = (number for number in partitions if number < self.rows)
        return merge(*map(self._spans, with_rows), key=itemgetter(0))

    def _spans(self, number: int) -> Iterator[tuple[int, Indices]]:
        part = self._partition(number)
        if isinstance(part.order, ShardOrder) and part.shards is not None:
            for end, shards in part.order.spans():
                yield (end - 1) * self.partitions + number + 1, part.shards[shards]

    def _windows(self, places: Indices) -> tuple[Indices, Indices]:
        """Returns the range of positions of the window of each place's row."""
        numbers = self._partitions_at(places)
        begins, ends = np.empty_like(places), np.empty_like(places)
        for part, here in self._each(numbers):
            begins[here], ends[here] = part.windows(part.rows(places[here]))
        return begins * self.partitions + numbers, (ends - 1) * self.partitions + numbers + 1

    def _each(self, numbers: Indices) -> Iterator[tuple[_Partition, Indices]]:
        """Yields each of the partitions, and the indices of its number among the numbers."""
        for number, here in grouped(numbers):
            yield self._partition(number), here

    def _first(self, numbers: Indices) -> Indices:
        """Returns the places of the first rows of partitions in the sequence."""
        each, longer = divmod(self.rows, self.partitions)
        return numbers * each + np.minimum(numbers, longer)

    def _partitions_at(self, places: Indices) -> Indices:
        """Returns the partition of each place: the first ones may have one row more."""
        each, longer = divmod(self.rows, self.partitions)
        of_longer = places // (each + 1)
        return np.where(of_longer < longer, of_longer, (places - longer) // max(1, each))

    def _partition(self, number: int) -> _Partition:
        # Partitions are made on demand, because each of thousands of ranks reads only one.
        part = self._made.get(number)
        if part is None:
            part = self._made[number] = self._make(number)
        return part

    def _make(self, number: int) -> _Partition:
        first, last = self._first(np.array([number, number + 1])).tolist()
        seed, rows = mixed_seed(self.seed, _PARTITION + number), last - first
        sequence = self._sequence
        if isinstance(sequence, RunSequence):
            # The blocks of the partition are aligned with those of the dataset. Otherwise each
            # would straddle two of them, and need two reads.
            shift = -first % self.block
            order = Order(rows, seed, self.epoch, self.mode, self.block, self._window)
            return _Partition(order, first, shift if shift < rows else 0)
        if self.mode == "shuffle":
            return _Partition(Order(rows, seed, self.epoch), first)
        begin, end = sequence.turns_at(np.array([first, last - 1])).tolist()
        bounds = np.clip(sequence.begins[begin : end + 2], first, last) - first
        shards = sequence.shards[begin : end + 1]
        return _Partition(ShardOrder(bounds, seed, self.epoch, self._window), first, 0, shards)
