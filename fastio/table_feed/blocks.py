"""Blocks of memory of one size, in huge pages, that are used again."""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20
_SLAB_BYTES = 32 << 20

Block = npt.NDArray[np.uint8]


class Blocks:
    """Lends blocks. Thread-safe; knows no bound, for which see `Budget` in `run`.

    Blocks lie side by side in larger mappings, so that few huge pages are shared with nothing.

    Args:
        nbytes: of a block.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: deque[Block] = deque()

    def take(self) -> Block:
        """A block with anything in it; give it back."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        blocks = max(1, _SLAB_BYTES // self.nbytes)
        memory = np.frombuffer(_pages(blocks * self.nbytes), np.uint8)
        parts = [memory[i * self.nbytes : (i + 1) * self.nbytes] for i in range(blocks)]
        self._free.extend(parts[1:])
        return parts[0]

    def give(self, block: Block) -> None:
        """Takes a block back."""
        self._free.append(block)


def _pages(nbytes: int) -> mmap.mmap:
    size = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # small pages do as well
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
