"""The order of rows in an epoch, as arithmetic: no permutation in memory, no state.

An order is a function of (rows, seed, epoch, mode) alone, the same for every thread, rank, world
size and machine. The permutations are those of `native/core/shuffle.h`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastio import _native

Mode = Literal["sequential", "shuffle", "window"]
MAX_ROWS = 2**48
Indices = npt.NDArray[np.int64]
_WORD = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Order:
    """Which row stands where in one epoch.

    Args:
        rows: of the dataset, 0 to 2**48.
        seed: any integer; 64 bits of it count.
        epoch: 0 or more.
        mode: "sequential" (row i at position i), "shuffle" (any row anywhere) or "window" (blocks
            of consecutive rows are shuffled, then the rows within a window of blocks: whole-block
            reads for remote and columnar data).
        block: rows of a block, for "window".
        window: blocks of a window, for "window".
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
        """How many blocks of `block` rows there are; the last may be shorter."""
        return -(-self.rows // self.block)

    def at(self, positions: npt.ArrayLike) -> Indices:
        """The rows that stand at positions, both int64 (n,), in [0, rows).

        Raises:
            ValueError: a position is outside.
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

    def positions(self, rows: npt.ArrayLike) -> Indices:
        """Where rows stand, both int64 (n,), in [0, rows): the inverse of `at`.

        Raises:
            ValueError: a row is outside.
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

    def window_of(self, blocks: npt.ArrayLike) -> tuple[Indices, Indices]:
        """Between which positions the rows of blocks stand.

        Args:
            blocks: numbers of blocks, int64 (n,), in [0, self.blocks): block b has the rows from
                b * block on.

        Returns:
            The first position of each block's window and the one after its last, int64 (n,). A
            sequential order has windows of one block, a shuffled one has a window of all rows.

        Raises:
            ValueError: a block is outside.
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
        return _native.mix_key(self.seed & _WORD, self.epoch)


@dataclass(frozen=True)
class Orders:
    """The orders of all epochs.

    Args:
        rows, seed, block, window: as in `Order`.
        mode: as in `Order`; or "settle": "window" in epoch 0, when data that is far away comes in,
            and "shuffle" in the epochs after it, when it is there.
    """

    rows: int
    seed: int = 0
    mode: Mode | Literal["settle"] = "shuffle"
    block: int = 64
    window: int = 64

    def epoch(self, epoch: int) -> Order:
        """The order of an epoch."""
        mode = self.mode
        if mode == "settle":
            mode = "shuffle" if epoch else "window"
        return Order(self.rows, self.seed, epoch, mode, self.block, self.window)


def _inside(values: npt.ArrayLike, bound: int, what: str) -> Indices:
    """As int64, all in [0, bound)."""
    values = np.ascontiguousarray(values, np.int64)
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < bound:
        raise ValueError(f"a {what} is not in [0, {bound})")
    return values
