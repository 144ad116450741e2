"""Writes files with direct I/O (O_DIRECT), that is, without the system's page cache.

Cached data may be read hours later: in the page cache it would only displace other data, and the
copy into the page cache costs more CPU time than all other work of caching.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from fastio.cache.held import HeldFolder
from fastio.runtime.memory import huge_pages

_ALIGNMENT = 4096  # bytes; of addresses, offsets and lengths; no disk needs a larger one
# The error numbers of open(2) and write(2) if the file system does not support direct I/O.
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Aligned:
    """The contents of a file in page-aligned memory, as `write_direct` needs it.

    Attributes:
        memory: uint8. It begins at a page boundary, and its length is a multiple of the page size.
        nbytes: The length of the file, which may be less than the memory's.
        xxh3: The xxh3_64 of the file's contents, as 16 hexadecimal digits.
    """

    memory: memoryview
    nbytes: int
    xxh3: str

    @classmethod
    def of(cls, memory: memoryview, nbytes: int) -> Aligned:
        """Hashes the contents, which must not change afterwards. Releases the GIL meanwhile."""
        digest = xxhash.xxh3_64()
        digest.update(memory[:nbytes])
        return cls(memory, nbytes, digest.hexdigest())

    @property
    def data(self) -> memoryview:
        """The contents of the file."""
        return self.memory[: self.nbytes]


def aligned_size(nbytes: int) -> int:
    """Returns the length of `Aligned.memory` for a file of `nbytes` bytes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Buffers:
    """A pool of memory for `Aligned`. Thread-safe.

    Memory is reused, because faulting in fresh pages costs more than the work on them. It uses huge
    pages where the system has them, because a disk's driver handles fewer of them.
    """

    def __init__(self) -> None:
        self._idle: list[memoryview] = []
        self._lock = threading.Lock()

    @contextmanager
    def take(self, nbytes: int) -> Iterator[memoryview]:
        """Lends uninitialised memory of at least `nbytes` bytes until the end of the block."""
        with self._lock:
            # The most recently used buffer may still be in the processor's cache.
            newest_first = reversed(range(len(self._idle)))
            found = next((n for n in newest_first if self._idle[n].nbytes >= nbytes), None)
            if found is None and self._idle:
                self._idle.pop(0)  # too small; the pool keeps as many as are used at once
            memory = None if found is None else self._idle.pop(found)
        memory = memory or memoryview(huge_pages(nbytes))
        try:
            yield memory
        finally:
            with self._lock:
                self._idle.append(memory)


def write_direct(folder: HeldFolder, name: str, file: Aligned) -> bool:
    """Writes a new file with direct I/O, if the file system supports it.

    Returns:
        Whether the file was written. If False, nothing was written.

    Raises:
        OSError: The file cannot be written.
    """
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        descriptor = folder.create(name, os.O_WRONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno in _REFUSED:
            folder.unlink(name)  # some file systems create the file before they refuse
            return False
        raise
    try:
        left = file.memory[: aligned_size(file.nbytes)]
        while left:
            left = left[os.write(descriptor, left) :]
        # Direct I/O writes whole blocks, so the padding after the contents is cut off.
        os.truncate(descriptor, file.nbytes)
    finally:
        os.close(descriptor)
    return True
