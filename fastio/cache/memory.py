"""Files in memory that the threads of this process open by a path, like any other file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


class MemoryFile:
    """A file in memory of `size` bytes, which exists as long as this object.

    Parts that are not written read as zeros and take no memory. Raises OSError if there is not
    enough memory or no free descriptor.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = -1
        self._descriptor = os.memfd_create("fastio", os.MFD_CLOEXEC)
        os.truncate(self._descriptor, size)

    @property
    def path(self) -> str:
        """The path of the file. Valid in this process only."""
        return f"/proc/self/fd/{self._descriptor}"

    def write(self, offset: int, data: Any) -> None:
        """Writes bytes at an offset."""
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def close(self) -> None:
        """Closes the file. Open descriptors and mappings of it stay readable. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # Not weakref.finalize: creating one on a thread during the interpreter's exit raises an error.
    def __del__(self) -> None:
        self.close()


def memory_file(parts: Sequence[Any]) -> MemoryFile:
    """Returns a file that holds the given bytes-like objects one after another."""
    file = MemoryFile(sum(memoryview(part).nbytes for part in parts))
    offset = 0
    for part in parts:
        file.write(offset, part)
        offset += memoryview(part).nbytes
    return file
