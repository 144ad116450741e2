"""Numbers of pieces that tell what the pieces were made from.

Datasets grow, and single objects of them are replaced. All versions of a dataset are one source of
a cache, in which a block of rows has one piece for each of its contents: an edition. A version
finds the pieces of those of its blocks that are as they were in an earlier version, and never those
of others.

The number of an edition has the block's number in its low 28 bits, and a hash of the contents in
the 34 bits above. So two editions of a block have the same number with a probability of 1 in 17
billion. Readers then notice it by the size, or by the checksums of a packed dataset. Other numbers
of pieces are below 2**62, and are those of blocks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

_EDITION = 1 << 62
_BLOCK_BITS = 28
_BLOCKS = (1 << _BLOCK_BITS) - 1
# The block of a piece, as `block_of`, in a query of the index.
BLOCK_SQL = f"CASE WHEN number >= {_EDITION} THEN number & {_BLOCKS} ELSE number END"


def edition(block: int, contents: bytes) -> int:
    """Returns the number of a block's piece.

    Args:
        block: The number of the block. Of those above 2**28, the forecasts of uses are of others.
        contents: Bytes that differ if the contents of the block do.
    """
    digest = xxhash.xxh3_64(block.to_bytes(8, "little"))
    digest.update(contents)
    return _EDITION | digest.intdigest() >> 30 << _BLOCK_BITS | block & _BLOCKS


def block_of(piece: int) -> int:
    """Returns the block of a piece's number, which is itself if the piece has no editions."""
    return piece & _BLOCKS if piece >= _EDITION else piece


def blocks_of(pieces: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the blocks of the numbers of pieces, int64 (n,); see `block_of`."""
    return np.where(pieces >= _EDITION, pieces & _BLOCKS, pieces)


def latest(pieces: npt.NDArray[np.int64], used: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Returns which pieces are those of their blocks that were used last, bool (n,).

    Args:
        pieces: int64 (n,), numbers of pieces of one source.
        used: float64 (n,), when they were last used.
    """
    by_block = np.lexsort((used, blocks_of(pieces)))
    blocks = blocks_of(pieces)[by_block]
    found = np.zeros(len(pieces), np.bool_)
    found[by_block] = np.append(blocks[1:] != blocks[:-1], [True] * bool(len(blocks)))
    return found
