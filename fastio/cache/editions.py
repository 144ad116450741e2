"""Numbers of pieces, which depend on the contents that the pieces were made from.

Datasets grow, and single objects of them are replaced. All versions of a dataset are one source of
a cache. In it, a block of rows has one piece for each of its contents: an edition. A version of the
dataset uses the editions of all blocks that are the same as in an earlier version, and never the
editions of other contents.

The number of an edition is at least 2**62. Its low 28 bits are the block's number, and the 34 bits
above are a hash of the contents. Two editions of a block have the same number with a probability of
1 in 17 billion. A reader then notices it by the size, or by the checksums of a packed dataset. A
piece without editions has a number below 2**62, which is the number of its block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

_EDITION = 1 << 62
_BLOCK_BITS = 28
_BLOCKS = (1 << _BLOCK_BITS) - 1
# `block_of(number)` as an expression of SQL, for queries of the index.
BLOCK_SQL = f"CASE WHEN number >= {_EDITION} THEN number & {_BLOCKS} ELSE number END"


def edition(block: int, contents: bytes) -> int:
    """Returns the number of a block's piece.

    Args:
        block: The number of the block. Numbers from 2**28 on share their low bits with lower ones,
            so their next use may be forecast wrongly.
        contents: Bytes that differ if the contents of the block do.
    """
    digest = xxhash.xxh3_64(block.to_bytes(8, "little"))
    digest.update(contents)
    return _EDITION | digest.intdigest() >> 30 << _BLOCK_BITS | block & _BLOCKS


def block_of(piece: int) -> int:
    """Returns the number of the block of a piece: the piece's own number if it has no editions."""
    return piece & _BLOCKS if piece >= _EDITION else piece


def blocks_of(pieces: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the numbers of the blocks of pieces, int64 (n,); see `block_of`."""
    return np.where(pieces >= _EDITION, pieces & _BLOCKS, pieces)


def latest(pieces: npt.NDArray[np.int64], used: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Returns for each piece whether it is the one of its block that was used last, bool (n,).

    Args:
        pieces: int64 (n,), numbers of pieces of one source.
        used: float64 (n,), when they were last used.
    """
    by_block = np.lexsort((used, blocks_of(pieces)))
    blocks = blocks_of(pieces)[by_block]
    found = np.zeros(len(pieces), np.bool_)
    found[by_block] = np.append(blocks[1:] != blocks[:-1], [True] * bool(len(blocks)))
    return found
