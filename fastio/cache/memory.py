"""Files in memory, which threads of this process read by a path like any other file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


class MemoryFile:
    """A file without a disk: it has a path, sizes may have holes, and it goes with this object.

    Args:
        size: of the file in bytes; what is not written reads as zeros and takes no memory.

    Raises:
        OSError: no memory, or no descriptor is free.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = -1
        self._descriptor = os.memfd_create("fastio", os.MFD_CLOEXEC)
        os.truncate(self._descriptor, size)

    @property
    def path(self) -> str:
        """Where this process finds it."""
        return f"/proc/self/fd/{self._descriptor}"

    def write(self, offset: int, data: Any) -> None:
        """Puts bytes at an offset."""
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def close(self) -> None:
        """Lets go of it; what is mapped or open stays readable. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # Not weakref.finalize: the interpreter's exit stumbles over one that a thread makes meanwhile.
    def __del__(self) -> None:
        self.close()


def memory_file(parts: Sequence[Any]) -> MemoryFile:
    """A file of bytes-like objects that follow one another."""
    file = MemoryFile(sum(memoryview(part).nbytes for part in parts))
    offset = 0
    for part in parts:
        file.write(offset, part)
        offset += memoryview(part).nbytes
    return file
