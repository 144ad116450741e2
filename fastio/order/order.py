"""The order of rows in an epoch, computed without a permutation in memory and without state.

An order is a function of (rows, seed, epoch, mode): it is the same for every thread, rank, world
size and machine. The permutations are those of `native/core/shuffle.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.packed.grouping import grouped, starts_of

Mode = Literal["sequential", "shuffle", "window"]
MAX_ROWS = _native.MAX_ROWS
Indices = npt.NDArray[np.int64]
WORD = 0xFFFFFFFFFFFFFFFF  # a mask: keys of random draws are the low 64 bits of integers


def mixed_seed(seed: int, number: int) -> int:
    """Returns a seed that is a function of another seed and a number of 0 or more."""
    return _native.mix_key(seed & WORD, number)


@dataclass(frozen=True)
class Order:
    """The order of rows in one epoch.

    Args:
        rows: number of rows of the dataset, 0 to 2**48.
        seed: any integer; its low 64 bits are used.
        epoch: 0 or more.
        mode: "sequential" (row i at position i), "shuffle" (any row anywhere) or "window" (blocks
            of consecutive rows are shuffled, then the rows within a window of blocks, so that
            remote and columnar data can be read in whole blocks).
        block: number of rows per block, for "window".
        window: number of blocks per window, for "window".

    Attributes:
        partitions: 1; see `PartitionedOrder`.
    """

    partitions: ClassVar[int] = 1
    rows: int
    seed: int = 0
    epoch: int = 0
    mode: Mode = "shuffle"
    block: int = 64
    window: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.rows <= MAX_ROWS:
            raise ValueError(f"rows must be in [0, 2**48], got {self.rows}")
        if self.mode not in ("sequential", "shuffle", "window"):
            raise ValueError(
                f"order must be 'sequential', 'shuffle' or 'window', got {self.mode!r}"
            )
        if self.block < 1 or self.window < 1:
            raise ValueError(f"block and window must be at least 1: {self.block}, {self.window}")
        if self.epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {self.epoch}")

    @property
    def blocks(self) -> int:
        """The number of blocks of `block` rows; the last may be shorter."""
        return -(-self.rows // self.block)

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, both int64 (n,), in [0, rows).

        Raises:
            ValueError: a position is out of range.
        """
        positions = np.ascontiguousarray(positions, np.int64)
        if self.mode == "sequential" or not positions.size:  # else native code checks the range
            return inside(positions, self.rows, "position")
        rows = np.empty_like(positions)
        if self.mode == "shuffle":
            _native.permute(self.rows, self._key, positions, rows)
        else:
            _native.permute_window(self.rows, self.block, self.window, self._key, positions, rows)
        return rows

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at positions first, first + 1, ...: int64 (count,).

        Raises:
            ValueError: a position is out of range.
        """
        if first < 0 or count < 0 or first + count > self.rows:
            raise ValueError(f"a position is not in [0, {self.rows})")
        if self.mode == "sequential" or not count:
            return np.arange(first, first + count, dtype=np.int64)
        rows = np.empty(count, np.int64)
        if self.mode == "shuffle":
            _native.permute_range(self.rows, self._key, first, rows)
        else:
            _native.permute_window_range(self.rows, self.block, self.window, self._key, first, rows)
        return rows

    def positions(self, rows: npt.ArrayLike) -> Indices:
        """Returns the positions of rows, both int64 (n,), in [0, rows): the inverse of `at`.

        Raises:
            ValueError: a row is out of range.
        """
        rows = inside(rows, self.rows, "row")
        if self.mode == "sequential" or not rows.size:
            return rows
        positions = np.empty_like(rows)
        if self.mode == "shuffle":
            _native.permute_inverse(self.rows, self._key, rows, positions)
        else:
            _native.permute_window_inverse(
                self.rows, self.block, self.window, self._key, rows, positions
            )
        return positions

    def window_of(self, blocks: npt.ArrayLike) -> tuple[Indices, Indices]:
        """Returns the range of positions in which the rows of each block lie.

        Args:
            blocks: numbers of blocks, int64 (n,), in [0, self.blocks): block b starts at row b *
                block.

        Returns:
            The first position of each block's window and the one after its last, int64 (n,). A
            sequential order has windows of one block; a shuffled one has one window of all rows.

        Raises:
            ValueError: a block is out of range.
        """
        blocks = inside(blocks, self.blocks, "block")
        begins, ends = np.zeros_like(blocks), np.full_like(blocks, self.rows)
        if self.mode == "sequential":
            begins = blocks * self.block
            # A block may be larger than the dataset by any factor: the sum must not overflow.
            ends = np.minimum(begins + min(self.block, self.rows), self.rows)
        elif self.mode == "window" and blocks.size:
            _native.windows_of(self.rows, self.block, self.window, self._key, blocks, begins, ends)
        return begins, ends

    @property
    def _key(self) -> int:
        return _native.mix_key(self.seed & WORD, self.epoch)


class ShardSequence:
    """The rows of shards with any numbers of rows, one shard after the other in a random order.

    Memory and time are proportional to the number of shards, not of rows. Immutable.

    Args:
        bounds: first row of each shard, from 0, and the number of rows; ascending. A shard may have
            no rows.
        seed, epoch: key of the order of the shards; see `Order`.

    Attributes:
        shards: int64 (shards,), the shard at each turn.
        turns: int64 (shards,), the turn of each shard.
        begins: int64 (shards + 1,), the place of the first row of each turn, and the number of
            rows.
    """

    def __init__(self, bounds: Sequence[int] | Indices, seed: int, epoch: int) -> None:
        self._bounds = np.asarray(bounds, np.int64)
        count = len(self._bounds) - 1
        self.shards = Order(count, seed, epoch).at(np.arange(count))
        # The inverse permutation gives the turn of each shard.
        self.turns = np.argsort(self.shards)
        self.begins = starts_of(np.diff(self._bounds)[self.shards])

    def turns_at(self, places: Indices) -> Indices:
        """Returns the turns whose shards have the rows at places, int64 (n,)."""
        return np.searchsorted(self.begins, places, side="right").astype(np.int64) - 1

    def shards_of(self, rows: Indices) -> Indices:
        """Returns the shards of rows, int64 (n,)."""
        return np.searchsorted(self._bounds, rows, side="right").astype(np.int64) - 1

    def rows(self, places: Indices) -> Indices:
        """Returns the rows at places of the sequence, both int64 (n,)."""
        turns = self.turns_at(places)
        found: Indices = self._bounds[self.shards[turns]] + places - self.begins[turns]
        return found

    def places(self, rows: Indices) -> Indices:
        """Returns the places of rows in the sequence, both int64 (n,)."""
        shards = self.shards_of(rows)
        found: Indices = self.begins[self.turns[shards]] + rows - self._bounds[shards]
        return found


class ShardOrder:
    """A "window" order whose blocks are shards with any numbers of rows.

    Shards are shuffled, and then the rows within a window of shards. Memory and time are
    proportional to the number of shards, not of rows. Immutable, so safe to use from several
    threads.

    Args:
        bounds: first row of each shard, from 0, and the number of rows; ascending. A shard may have
            no rows.
        seed, epoch: as in `Order`.
        window: number of shards per window.

    Attributes:
        rows: number of rows of the dataset.
        seed, epoch, window: as given.
        mode: "window".
        block: 0: windows do not consist of blocks.
        partitions: 1; see `PartitionedOrder`.
    """

    mode: ClassVar[Literal["window"]] = "window"
    block: ClassVar[int] = 0
    partitions: ClassVar[int] = 1

    def __init__(self, bounds: Sequence[int] | Indices, seed: int, epoch: int, window: int) -> None:
        if window < 1 or epoch < 0:
            raise ValueError(f"window must be at least 1 and epoch 0 or more: {window}, {epoch}")
        self.rows, self.seed, self.epoch, self.window = int(bounds[-1]), seed, epoch, window
        self._key = _native.mix_key(seed & WORD, epoch)
        self._sequence = ShardSequence(bounds, seed, epoch)
        self._windows = np.append(self._sequence.begins[:-1:window], self.rows)

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, as `Order.at`."""
        positions = inside(positions, self.rows, "position")
        return self._sequence.rows(self._permuted(positions, _native.permute))

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at consecutive positions, as `Order.span`."""
        return self.at(np.arange(first, first + count, dtype=np.int64))

    def positions(self, rows: npt.ArrayLike) -> Indices:
        """Returns the positions of rows, as `Order.positions`."""
        rows = inside(rows, self.rows, "row")
        return self._permuted(self._sequence.places(rows), _native.permute_inverse)

    def shards_of(self, rows: npt.ArrayLike) -> Indices:
        """Returns the shard of each row, int64 (n,)."""
        return self._sequence.shards_of(inside(rows, self.rows, "row"))

    def window_of(self, shards: npt.ArrayLike) -> tuple[Indices, Indices]:
        """Returns the range of positions of each shard's window, as `Order.window_of`."""
        turns = self._sequence.turns
        windows = turns[inside(shards, len(turns), "shard")] // self.window
        return self._windows[windows], self._windows[windows + 1]

    def spans(self) -> Iterator[tuple[int, Indices]]:
        """Yields, for each window in turn, the position after its last one and its shards."""
        shards = self._sequence.shards
        ends, every = self._windows[1:].tolist(), range(0, len(shards), self.window)
        for end, first in zip(ends, every, strict=True):
            yield end, shards[first : first + self.window]

    def _permuted(self, places: Indices, permute: Callable[..., None]) -> Indices:
        """Returns places permuted within their windows; each window has its own permutation."""
        windows = np.searchsorted(self._windows, places, side="right") - 1
        found = np.empty_like(places)
        for window, here in grouped(windows):
            begin, end = self._windows[window : window + 2].tolist()
            # Each window has a key of its own, as in the native order by blocks, so that windows of
            # one size are not permuted alike.
            key = _native.mix_key(self._key, window + 1)
            moved = np.empty(len(here), np.int64)
            permute(end - begin, key, places[here] - begin, moved)
            found[here] = moved + begin
        return found


def inside(values: npt.ArrayLike, bound: int, what: str) -> Indices:
    """Returns values as int64, and raises an error unless all are in [0, bound)."""
    values = np.ascontiguousarray(values, np.int64)
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < bound:
        raise ValueError(f"a {what} is not in [0, {bound})")
    return values
