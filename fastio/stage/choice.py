"""Chooses the number of rows in a block, and of blocks that are shuffled together.

The rows of `window` blocks from random positions of the dataset are mixed, so that a batch has rows
from up to `window` positions. With 32 blocks of 40 rows, a batch of 256 rows has on average 8 rows
of each block, combined with other blocks in every epoch. A shuffle buffer of the same size over
files that are read in order needs as much memory, but mixes neighbouring rows only.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 256 << 10
_BLOCKS = 256  # number of blocks of a small dataset
_WINDOW_BLOCKS = 32
_ROW_BLOCK_BYTES = 128 << 10  # size of a block if single rows are wanted
_BUDGET_SHARE = 8  # the least number of windows that fit into the cache


@dataclass(frozen=True)
class Cut:
    """The number of rows in a block, and of blocks in a window."""

    block_rows: int
    window: int


def cut(rows: int, nbytes: int, room: int | None, *, by_rows: bool = False) -> Cut:
    """Returns the block and window sizes for a dataset.

    Args:
        rows, nbytes: The size of the dataset.
        room: The size of the cache in bytes. If None, blocks stay in memory.
        by_rows: Whether rows are read in random order, so that a block is used once for each of its
            rows and is not kept.
    """
    row_bytes = max(1.0, nbytes / max(1, rows))
    block_bytes = min(BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, nbytes // _BLOCKS))
    if by_rows:
        block_bytes = _ROW_BLOCK_BYTES
    block_rows = max(1, round(block_bytes / row_bytes))
    blocks = _WINDOW_BLOCKS
    if room is not None:
        blocks = int(room // _BUDGET_SHARE // (block_rows * row_bytes))
    return Cut(block_rows, max(1, min(_WINDOW_BLOCKS, blocks)))
