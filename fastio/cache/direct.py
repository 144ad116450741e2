"""Writing files past the system's page cache, from memory that disks can read.

What is staged hours before it is read would only push other things out of the page cache, and
copying it there costs more processor time than all the rest of staging it.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from fastio.cache.held import HeldFolder

_ALIGNMENT = 4096  # of addresses, offsets and lengths; no disk asks for more
_HUGE_PAGE = 2 << 20
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Aligned:
    """Bytes of a file in memory that `write_direct` takes.

    Attributes:
        memory: uint8, that begins at a page and is a whole number of them.
        nbytes: of it that are the file's.
    """

    memory: memoryview
    nbytes: int

    @property
    def data(self) -> memoryview:
        """The file's bytes."""
        return self.memory[: self.nbytes]


def aligned_size(nbytes: int) -> int:
    """Bytes of `Aligned.memory` for so many."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Buffers:
    """Memory for `Aligned`, used again: fresh pages cost more than what is done with them.

    In huge pages where the system has some, of which a disk's driver needs fewer. Thread-safe.
    """

    def __init__(self) -> None:
        self._idle: list[memoryview] = []
        self._lock = threading.Lock()

    @contextmanager
    def take(self, nbytes: int) -> Iterator[memoryview]:
        """Memory of so many bytes at least, with anything in it, until the end of the block."""
        with self._lock:
            # The one that was used last may still be in the processor's cache.
            newest_first = reversed(range(len(self._idle)))
            found = next((n for n in newest_first if self._idle[n].nbytes >= nbytes), None)
            if found is None and self._idle:
                self._idle.pop(0)  # too small: as many as are used at once are kept, no more
            memory = None if found is None else self._idle.pop(found)
        memory = memory or _pages(nbytes)
        try:
            yield memory
        finally:
            with self._lock:
                self._idle.append(memory)


def _pages(nbytes: int) -> memoryview:
    size = -(-max(nbytes, 1) // _HUGE_PAGE) * _HUGE_PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # small pages do as well
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def write_direct(folder: HeldFolder, name: str, file: Aligned) -> bool:
    """Writes a file, if the file system can without its page cache.

    Args:
        folder: where it is made.
        name: of the file, which is not there yet.
        file: what it is to hold.

    Returns:
        Whether it was written; False: nothing was.

    Raises:
        OSError: it cannot be written.
    """
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        descriptor = folder.create(name, os.O_WRONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno in _REFUSED:
            folder.unlink(name)  # some file systems make it first
            return False
        raise
    try:
        left = file.memory[: aligned_size(file.nbytes)]
        while left:
            left = left[os.write(descriptor, left) :]
        os.truncate(descriptor, file.nbytes)
    finally:
        os.close(descriptor)
    return True
