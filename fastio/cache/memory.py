"""Files in memory that the threads of this process open by a path, like any other file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

_MOST_VIEWS = 1024  # that one system call writes (IOV_MAX)


class MemoryFile:
    """A file in memory of `size` bytes, which exists as long as this object.

    Parts that are not written read as zeros and take no memory. Raises OSError if there is not
    enough memory or no free descriptor.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = -1
        # `__del__` needs the attribute also if this call fails.
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

    def write_all(self, views: Sequence[memoryview]) -> None:
        """Writes bytes one after another from the beginning on, in few system calls."""
        offset = 0
        for first in range(0, len(views), _MOST_VIEWS):
            some = views[first : first + _MOST_VIEWS]
            wanted = sum(view.nbytes for view in some)
            written = os.pwritev(self._descriptor, some, offset)
            if written < wanted:  # as for more than 2 GiB
                self._write_rest(some, offset, written)
            offset += wanted

    def _write_rest(self, views: Sequence[memoryview], offset: int, written: int) -> None:
        """Writes what is left of views that begin at an offset."""
        for view in views:
            left = view[min(written, view.nbytes) :]
            self.write(offset + view.nbytes - left.nbytes, left)
            written -= view.nbytes - left.nbytes
            offset += view.nbytes

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
    views = [memoryview(part) for part in parts]
    file = MemoryFile(sum(view.nbytes for view in views))
    file.write_all([view.cast("B") for view in views if view.nbytes])
    return file
