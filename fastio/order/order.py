"""The order of rows in an epoch, computed without a permutation in memory and without state.

An order is a function of (rows, seed, epoch, mode): it is the same for every thread, rank, world
size and machine. The permutations are those of `native/core/shuffle.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastio import _native

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
    """

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
        if self.mode == "sequential" or not positions.size:
            return _inside(positions, self.rows, "position")
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
        rows = _inside(rows, self.rows, "row")
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

    def positions_of_span(self, first: int, count: int) -> Indices:
        """Returns the positions of rows first, first + 1, ..., int64 (count,).

        Raises:
            ValueError: a row is out of range.
        """
        if first < 0 or count < 0 or first + count > self.rows:
            raise ValueError(f"a row is not in [0, {self.rows})")
        if self.mode != "shuffle" or not count:
            return self.positions(np.arange(first, first + count, dtype=np.int64))
        positions = np.empty(count, np.int64)
        _native.permute_inverse_range(self.rows, self._key, first, positions)
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
        blocks = _inside(blocks, self.blocks, "block")
        begins, ends = np.zeros_like(blocks), np.full_like(blocks, self.rows)
        if self.mode == "sequential":
            begins = blocks * self.block
            ends = np.minimum(begins + min(self.block, self.rows), self.rows)
        elif self.mode == "window" and blocks.size:
            _native.windows_of(self.rows, self.block, self.window, self._key, blocks, begins, ends)
        return begins, ends

    @property
    def _key(self) -> int:
        return _native.mix_key(self.seed & WORD, self.epoch)


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
        rows, seed, epoch, window: of the order.
        mode: "window".
    """

    mode: Literal["window"] = "window"

    def __init__(self, bounds: Sequence[int], seed: int, epoch: int, window: int) -> None:
        if window < 1 or epoch < 0:
            raise ValueError(f"window must be at least 1 and epoch 0 or more: {window}, {epoch}")
        self._bounds = np.asarray(bounds, np.int64)
        self.rows, self.seed, self.epoch, self.window = int(bounds[-1]), seed, epoch, window
        self._key = _native.mix_key(seed & WORD, epoch)
        shards = len(self._bounds) - 1
        self._shards = Order(shards, seed, epoch).at(np.arange(shards))  # turn -> shard
        self._turns = np.argsort(self._shards)
        sizes = np.diff(self._bounds)[self._shards]
        self._begins = np.append(0, np.cumsum(sizes))  # of each turn among the positions
        self._windows = np.append(self._begins[:-1:window], self.rows)

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, as `Order.at`."""
        positions = _inside(positions, self.rows, "position")
        places = self._permuted(positions, _native.permute)
        turns = np.searchsorted(self._begins, places, side="right") - 1
        found: Indices = self._bounds[self._shards[turns]] + places - self._begins[turns]
        return found

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at consecutive positions, as `Order.span`."""
        return self.at(np.arange(first, first + count, dtype=np.int64))

    def positions(self, rows: npt.ArrayLike) -> Indices:
        """Returns the positions of rows, as `Order.positions`."""
        rows = _inside(rows, self.rows, "row")
        shards = np.searchsorted(self._bounds, rows, side="right") - 1
        places = self._begins[self._turns[shards]] + rows - self._bounds[shards]
        return self._permuted(places, _native.permute_inverse)

    def window_of(self, shards: npt.ArrayLike) -> tuple[Indices, Indices]:
        """Returns the range of positions of each shard's window, as `Order.window_of`."""
        windows = self._turns[_inside(shards, len(self._turns), "shard")] // self.window
        return self._windows[windows], self._windows[windows + 1]

    def spans(self) -> list[tuple[int, Indices]]:
        """Returns, for each window in turn, the position after its last one and its shards."""
        ends, every = self._windows[1:].tolist(), range(0, len(self._shards), self.window)
        return [
            (end, self._shards[first : first + self.window])
            for end, first in zip(ends, every, strict=True)
        ]

    def _permuted(self, places: Indices, permute: Callable[..., None]) -> Indices:
        """Returns places permuted within their windows; each window has its own permutation."""
        windows = np.searchsorted(self._windows, places, side="right") - 1
        found = np.empty_like(places)
        for window in np.unique(windows).tolist():
            here = windows == window
            begin, end = self._windows[window : window + 2].tolist()
            inside = np.empty(np.count_nonzero(here), np.int64)
            permute(
                end - begin, _native.mix_key(self._key, window + 1), places[here] - begin, inside
            )
            found[here] = inside + begin
        return found


@dataclass(frozen=True, eq=False)
class DrawnOrder:
    """An order drawn by a random generator: a permutation in memory, 4 or 8 bytes per row.

    Args:
        permutation: int64 or int32 (rows,), the row at each position.
        seed, epoch: key of other draws that depend on the order; see `plan.BucketPlan`.
    """

    permutation: Indices | npt.NDArray[np.int32]
    seed: int = 0
    epoch: int = 0

    @property
    def rows(self) -> int:
        """The number of rows of the dataset."""
        return len(self.permutation)

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, both int64 (n,), in [0, rows)."""
        rows = self.permutation[_inside(positions, self.rows, "position")]
        return rows.astype(np.int64, copy=False)

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at positions first, first + 1, ...: int64 (count,)."""
        return self.permutation[first : first + count].astype(np.int64, copy=False)


class PickedOrder:
    """An order of picked rows of a dataset: the rows of another order are indices into their list.

    Args:
        order: order of as many rows as are picked.
        picked: int64 (order.rows,), rows of the dataset.

    Attributes:
        rows, seed, epoch: of the order.
    """

    def __init__(self, order: Order | ShardOrder | DrawnOrder, picked: Indices) -> None:
        self.rows, self.seed, self.epoch = order.rows, order.seed, order.epoch
        self._order, self._picked = order, picked

    def at(self, positions: npt.ArrayLike) -> Indices:
        """Returns the rows at positions, as `Order.at`."""
        return self._picked[self._order.at(positions)]

    def span(self, first: int, count: int) -> Indices:
        """Returns the rows at consecutive positions, as `Order.span`."""
        return self._picked[self._order.span(first, count)]


AnyOrder = Order | ShardOrder | DrawnOrder


@dataclass(frozen=True)
class Orders:
    """The orders of all epochs.

    Args:
        rows, seed, block, window: as in `Order`.
        mode: as in `Order`; or "settle": "window" in epoch 0, in which remote data is fetched, and
            "shuffle" in later epochs, when it is cached.
        bounds: first row of each shard, and the number of rows; windows then consist of shards
            instead of blocks, see `ShardOrder`.
    """

    rows: int
    seed: int = 0
    mode: Mode | Literal["settle"] = "shuffle"
    block: int = 64
    window: int = 64
    bounds: tuple[int, ...] | None = None

    def epoch(self, epoch: int) -> Order | ShardOrder:
        """Returns the order of an epoch."""
        mode = self.mode
        if mode == "settle":
            mode = "shuffle" if epoch else "window"
        if mode == "window" and self.bounds is not None:
            return ShardOrder(self.bounds, self.seed, epoch, self.window)
        return Order(self.rows, self.seed, epoch, mode, self.block, self.window)


def _inside(values: npt.ArrayLike, bound: int, what: str) -> Indices:
    """Returns values as int64, and raises an error unless all are in [0, bound)."""
    values = np.ascontiguousarray(values, np.int64)
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < bound:
        raise ValueError(f"a {what} is not in [0, {bound})")
    return values
