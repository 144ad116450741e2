"""How rows are cut in blocks, and how many blocks are shuffled together.

Rows of `window` blocks, which lie anywhere in the dataset, are mixed: a batch has rows of up to
`window` places. With 32 blocks of 40 rows a batch of 256 rows has on average 8 of each block, in
another company every epoch; a shuffle buffer of as many rows over files that are read in order has
rows of one place, and needs as much memory.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 256 << 10
_BLOCKS = 256  # of a small dataset
_WINDOW_BLOCKS = 32
_ROW_BLOCK_BYTES = 128 << 10  # where single rows are wanted
_BUDGET_SHARE = 8  # windows in a cache, at least


@dataclass(frozen=True)
class Cut:
    """Rows of a block, and blocks of a window."""

    block_rows: int
    window: int


def cut(rows: int, nbytes: int, room: int | None, *, by_rows: bool = False) -> Cut:
    """The cut of a dataset.

    Args:
        rows, nbytes: of the dataset.
        room: bytes of the cache; None: there is none, blocks stay in memory.
        by_rows: blocks are used once for each of their rows, at any time, and do not stay.
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
