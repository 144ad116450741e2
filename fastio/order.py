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

    def at(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The rows that stand at positions, both int64 (n,), in [0, rows).

        Raises:
            ValueError: a position is outside.
        """
        positions = np.ascontiguousarray(positions, np.int64)
        if self.mode == "sequential":
            if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < self.rows:
                raise ValueError(f"a position is not in [0, {self.rows})")
            return positions
        out = np.empty_like(positions)
        key = _native.mix_key(self.seed & _WORD, self.epoch)
        if not positions.size:
            return out
        if self.mode == "shuffle":
            _native.permute(self.rows, key, positions, out)
        else:
            _native.permute_window(self.rows, self.block, self.window, key, positions, out)
        return out
