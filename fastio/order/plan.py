"""Plans divide an order into batches: which rows a rank gets at which step.

A global batch is `batch_size * world_size` consecutive positions of the order; rank r gets its r-th
part. The samples of a step, taken over all ranks, therefore depend on the global batch size only,
and every rank makes the same number of steps. If the order has partitions, the positions of a
global batch are sorted by partition before they are divided, so that neighbouring ranks read the
same partition, or each rank reads partitions of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastio.order.order import Indices
from fastio.order.orders import AnyOrder
from fastio.packed.grouping import starts_of

_GOLDEN = 0x9E3779B97F4A7C15
_OF_IMAGES = 0xD1342543DE82EF95  # an odd number with well mixed bits, for `image_keys`
_ROWS_AT_ONCE = 1024  # a plan looks up so many rows at a time if batches are smaller


class Together:
    """Consecutive small batches whose rows are looked up together.

    Attributes:
        rows: int64 (n,), the rows of all of them, one batch after another.
        found: the results of looking up the rows, by the object that looked them up.
    """

    def __init__(self, rows: Indices) -> None:
        self.rows = rows
        self.found: dict[object, Any] = {}


class PlannedBatch(NamedTuple):
    """One batch of one rank, before anything is read.

    Attributes:
        step: number of the batch in its plan, from 0.
        rows: int64 (n,), global row numbers.
        valid: number of rows that count; the others, at the end, repeat rows of the epoch so that
            every rank has the same number.
        next_position: samples of the epoch, over all ranks, that are done after this batch.
        occurrences: int64 (n,), how often each row occurred earlier in the epoch; None if never.
        together: this batch and others that will be read soon; None if it is not small.
        first: index of its first row in `together.rows`.
    """

    step: int
    rows: Indices
    valid: int
    next_position: int
    occurrences: Indices | None = None
    together: Together | None = None
    first: int = 0

    def with_rows(self, rows: Indices, occurrences: Indices | None) -> PlannedBatch:
        """Returns this batch with other rows, which are looked up without other batches."""
        return self._replace(rows=rows, occurrences=occurrences, together=None, first=0)


def draw_keys(rows: Indices, occurrences: Indices | None) -> Indices:
    """Returns the keys of the samples' random draws, besides seed and epoch: int64 (n,).

    The key of a row that occurs for the first time is its number. Further occurrences have 64 mixed
    bits (the finaliser of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014), which collide with the key of another row with a probability of
    2**-64.
    """
    if occurrences is None or not occurrences.any():
        return rows
    return _mixed(rows, occurrences, _GOLDEN)


def image_keys(keys: Indices, index: Indices) -> Indices:
    """Returns the keys of the draws of images in lists: int64 (n,).

    The first image of a list has the key of its sample. The others have mixed bits, with another
    multiplier than in `draw_keys`, so that no occurrence of the sample has the same ones.

    Args:
        keys: int64 (n,), the key of each image's sample, as `draw_keys` returns it.
        index: int64 (n,), the place of each image in its list.
    """
    return _mixed(keys, index, _OF_IMAGES)


def _mixed(keys: Indices, numbers: Indices, multiplier: int) -> Indices:
    """Returns 64 mixed bits of each key and number; the key itself if the number is 0."""
    words = keys.astype(np.uint64) ^ numbers.astype(np.uint64) * np.uint64(multiplier)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    words ^= words >> np.uint64(31)
    return np.where(numbers == 0, keys, words.view(np.int64))


class Occurrences:
    """Counts how often each row has occurred.

    Args:
        rows: number of rows of the dataset, or of places in `picked`.
        picked: int64 (rows,), the dataset's rows at the places; None if the counted values are
            rows.
    """

    def __init__(self, rows: int, picked: Indices | None = None) -> None:
        most = int(picked.max()) + 1 if picked is not None and picked.size else rows
        self._counts = np.zeros(most, np.uint32)
        self._picked = picked

    def count(self, rows: Indices) -> Indices:
        """Counts rows, int64 (n,), and returns how often each had occurred before, int64 (n,)."""
        rows = rows if self._picked is None else self._picked[rows]
        # A stable sort keeps equal rows in the order in which they occur and are numbered.
        turns = np.argsort(rows, kind="stable")
        ordered = rows[turns]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1))
        lengths = np.diff(begins, append=len(rows))
        within = np.arange(len(rows)) - np.repeat(begins, lengths)
        found = np.empty(len(rows), np.int64)
        found[turns] = self._counts[ordered] + within
        self._counts[ordered[begins]] += lengths.astype(np.uint32)
        return found


def classes(partitions: int, repeat: int, begin: int, end: int) -> tuple[Indices, Indices]:
    """Divides the positions [begin, end) by partition, and then by copy of the same row.

    Returns:
        The first position of each class and the number of its positions, int64 (n,). Its positions
        are n = partitions * repeat apart.
    """
    cycle = partitions * repeat
    # The partition of a position is the remainder of its division by the number of partitions.
    # Copies of a row are consecutive positions of its partition.
    remainders = np.arange(cycle).reshape(repeat, partitions).T.reshape(-1)
    firsts = begin + (remainders - begin) % cycle
    return firsts, np.maximum(0, -((firsts - end) // cycle))


@dataclass(frozen=True)
class Plan:
    """The batches of one rank in one epoch. Iterating yields them in order.

    Args:
        order: order of the epoch.
        batch_size: number of rows per batch on each rank.
        drop_last: drop the last global batch if it is not full. Otherwise its samples are spread
            evenly over the ranks, and ranks with fewer samples are padded with rows from the
            beginning of the epoch (`PlannedBatch.valid` excludes them).
        rank, world_size: rank of this process, and number of processes.
        start: first position: number of samples of the epoch, over all ranks, that are done.
        repeat: how often a row occurs, at consecutive positions, or at consecutive positions of
            its partition. The epoch has `order.rows` samples all the same, so that the last rows
            of the order do not occur. The ranks that read a partition get different copies.
    """

    order: AnyOrder
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    start: int = 0
    repeat: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not in [0, world_size {self.world_size})")
        if not 0 <= self.start <= self.order.rows:
            raise ValueError(f"start {self.start} is not in [0, {self.order.rows}]")

    @property
    def global_batch(self) -> int:
        """The number of samples of a full step over all ranks."""
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        left = self.order.rows - self.start
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def batch(self, step: int) -> PlannedBatch:
        """Returns the batch of a step in [0, len(self)); IndexError for other steps."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is not in [0, {len(self)})")
        return self._batch(step)

    def _batch(self, step: int) -> PlannedBatch:
        size = self.batch_size * self.world_size
        begin = self.start + step * size
        end = min(begin + size, self.order.rows)
        share = -(-(end - begin) // self.world_size)
        if self.repeat > 1 or self.order.partitions > 1:
            positions = self._positions(begin, end, share)
            valid = len(positions)
            if valid < share:
                positions = np.append(positions, self.padding(share - valid))
            places, copies = self._copies(positions)
            return PlannedBatch(step, self.order.at(places), valid, end, copies)
        first = begin + self.rank * share
        valid = max(0, min(share, end - first))
        if valid == share:
            return PlannedBatch(step, self.order.span(first, share), valid, end)
        positions = np.arange(first, first + share, dtype=np.int64)
        positions[valid:] %= self.order.rows  # padded from the epoch's beginning
        return PlannedBatch(step, self.order.at(positions), valid, end)

    def _positions(self, begin: int, end: int, share: int) -> Indices:
        """Returns this rank's part of the positions of a global batch.

        They are sorted by partition, and then by copy, so that ranks of a partition get different
        copies of a row. Without partitions, the ranks take turns, as in timm's RepeatAugSampler.
        """
        if self.order.partitions == 1:
            return np.arange(begin + self.rank, end, self.world_size, dtype=np.int64)
        firsts, sizes = classes(self.order.partitions, self.repeat, begin, end)
        starts = starts_of(sizes)
        last = min((self.rank + 1) * share, end - begin)
        turns = np.arange(self.rank * share, last, dtype=np.int64)
        numbers = np.searchsorted(starts, turns, side="right") - 1
        found: Indices = firsts[numbers] + (turns - starts[numbers]) * len(firsts)
        return found

    def _copies(self, positions: Indices) -> tuple[Indices, Indices | None]:
        """Returns the positions in the order, and the copies of their rows; None for one of each.

        The positions of a partition are those of the same remainder, here as in the order.
        """
        if self.repeat == 1:
            return positions, None
        turns, numbers = np.divmod(positions, self.order.partitions)
        turns, copies = np.divmod(turns, self.repeat)
        return turns * self.order.partitions + numbers, copies

    def padding(self, count: int) -> Indices:
        """Returns positions at the epoch's beginning, of the partition that this rank reads."""
        partitions = self.order.partitions
        # Padding is taken from the partition of the rank's first row, so that a node does not read
        # data of another node's partition.
        first = self.rank * partitions // self.world_size
        return (first + partitions * np.arange(count, dtype=np.int64)) % self.order.rows

    def __iter__(self) -> Iterator[PlannedBatch]:
        size = self.batch_size
        at_once = _ROWS_AT_ONCE // size
        # Asking the order takes longer than the rest of the work for a small batch.
        consecutive = self.world_size == self.repeat == 1
        full = (self.order.rows - self.start) // size if at_once and consecutive else 0
        for step in range(0, full, at_once or 1):
            count = min(at_once, full - step)
            begin = self.start + step * size
            rows = self.order.span(begin, count * size)
            together = Together(rows) if count > 1 else None
            for number in range(count):
                first = number * size
                last = first + size
                yield PlannedBatch(
                    step + number, rows[first:last], size, begin + last, None, together, first
                )
        yield from map(self._batch, range(full, len(self)))


def follow(
    batches: Iterable[Iterable[int]],
    rows: int,
    start: int = 0,
    seen: Occurrences | None = None,
) -> Iterator[PlannedBatch]:
    """Yields the batches of a user's batch sampler as planned batches.

    Args:
        batches: lists of row numbers; negative ones count from the end.
        rows: number of rows of the dataset.
        start: number of samples done before, for `PlannedBatch.next_position`.
        seen: counter of the rows, for `PlannedBatch.occurrences`.

    Raises:
        IndexError: a row number is out of range.
    """
    position = start
    for step, batch in enumerate(batches):
        numbers = row_numbers(batch, rows)
        position += len(numbers)
        occurrences = None if seen is None else seen.count(numbers)
        yield PlannedBatch(step, numbers, len(numbers), position, occurrences)


def row_numbers(keys: Iterable[int], rows: int) -> Indices:
    """Returns the keys of a sampler as row numbers, int64 (n,); negative ones count from the end.

    Raises:
        IndexError: a row number is out of range.
        TypeError: a key is no integer, for example a fraction or a list.
    """
    try:  # NumPy's own conversion would truncate fractions, parse strings and join lists
        numbers = np.fromiter(map(operator.index, keys), np.int64)
    except TypeError as error:
        raise TypeError(f"the sampler gave a key that is no row number: {error}") from error
    outside = numbers[(numbers < -rows) | (numbers >= rows)]
    if outside.size:
        raise IndexError(f"the sampler gave row {outside[0]}, but the dataset has {rows} rows")
    return np.where(numbers < 0, numbers + rows, numbers)
