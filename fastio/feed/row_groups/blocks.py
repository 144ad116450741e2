"""A pool of equal memory blocks in huge pages."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

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

    def take(self, count: int, where: str) -> list[Block]:
        """Returns blocks with undefined contents, for rows of `where`. Return each with `give`.

        Raises:
            SchemaError: If there is no memory for them.
        """
        taken: list[Block] = []
        with suppress(IndexError):
            while len(taken) < count:
                taken.append(self._free.pop())
        missing = count - len(taken)
        if not missing:
            return taken
        # In one mapping, because the system refuses mappings that are larger than its memory, but
        # not many smaller ones. A process that has too much of it can no longer fork.
        blocks = max(missing, _SLAB_BYTES // self.nbytes)
        try:
            memory = np.frombuffer(huge_pages(blocks * self.nbytes), np.uint8)
        except (OSError, OverflowError) as error:  # OverflowError: beyond the address space
            self._free.extend(taken)
            raise SchemaError(
                f"{where}: no memory for {count * self.nbytes:,} bytes of its rows: use a smaller "
                "memory=, or read fewer columns"
            ) from error
        # Threads that find too few free blocks all allocate; the pool keeps what is left over.
        parts = [memory[i * self.nbytes : (i + 1) * self.nbytes] for i in range(blocks)]
        self._free.extend(parts[missing:])
        return taken + parts[:missing]

    def give(self, block: Block) -> None:
        """Returns a block to the pool."""
        self._free.append(block)
