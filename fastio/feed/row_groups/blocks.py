"""A pool of equal memory blocks in huge pages."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from fastio.errors import SchemaError
from fastio.runtime.memory import huge_pages

_SLAB_BYTES = 32 << 20

Block = npt.NDArray[np.uint8]


class BlockMemory:
    """Lends memory blocks. Thread-safe. The number is not limited here; see `TableRun`.

    Blocks are parts of larger mappings, so that little of the huge pages is wasted.

    Args:
        nbytes: The size of a block in bytes.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: deque[Block] = deque()

    def take(self, where: str) -> Block:
        """Returns a block with undefined contents, for rows of `where`. Return it with `give`.

        Raises:
            SchemaError: If there is no memory for it.
        """
        try:
            return self._free.pop()
        except IndexError:
            pass
        blocks = max(1, _SLAB_BYTES // self.nbytes)
        try:
            memory = np.frombuffer(huge_pages(blocks * self.nbytes), np.uint8)
        except (OSError, OverflowError) as error:  # OverflowError: beyond the address space
            raise SchemaError(
                f"{where}: no memory for {self.nbytes:,} bytes of its rows: use a smaller "
                "memory=, or read fewer columns"
            ) from error
        # Two threads that find no free block both allocate; the pool keeps what is left over.
        parts = [memory[i * self.nbytes : (i + 1) * self.nbytes] for i in range(blocks)]
        self._free.extend(parts[1:])
        return parts[0]

    def give(self, block: Block) -> None:
        """Returns a block to the pool."""
        self._free.append(block)
