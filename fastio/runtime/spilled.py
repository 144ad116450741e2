"""Lists of numbers and bytes in temporary files, of which only the end is in memory.

The descriptions of a pack's shards grow with the pack. In a temporary file they take no memory of
the process: parts are read when they are needed, or the file is mapped. A file is made only for a
list of more than `_KEPT` bytes. It has no name, so a killed process leaves none behind.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_KEPT = 1 << 16  # bytes in memory of each list


class TemporaryData:
    """A temporary file without a name. Used by one thread.

    Args:
        folder: A folder on the file system to use; None for the usual one of temporary files.

    Attributes:
        nbytes: Its size in bytes.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, folder: Path | None = None) -> None:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.nbytes = 0

    def append(self, data: bytes | memoryview) -> None:
        """Adds bytes; raises OSError if the disk is full."""
        left = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while left:
            written = os.pwrite(self._descriptor, left, self.nbytes)
            self.nbytes += written
            left = left[written:]

    def read(self, offset: int, length: int) -> bytes:
        """Returns bytes. The file must have all of them."""
        return os.pread(self._descriptor, length, offset)

    def reserve(self, nbytes: int) -> None:
        """Makes the file longer, with zeros; raises OSError if the disk is full."""
        # Not ftruncate: if the disk were full, a write to the mapping of a sparse file would end
        # the process (SIGBUS).
        os.posix_fallocate(self._descriptor, 0, self.nbytes + nbytes)
        self.nbytes += nbytes

    def mapped(self, writable: bool = False) -> memoryview:
        """Returns the current bytes, mapped. They can be used longer than this object."""
        if not self.nbytes:
            return memoryview(b"")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(self._descriptor, self.nbytes, access=access))


class SpilledBytes:
    """A sequence of bytes, to which bytes can be added. Used by one thread.

    Args:
        folder: As of `TemporaryData`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: TemporaryData | None = None
        self._end = bytearray()  # bytes that are not in the file yet

    def __len__(self) -> int:
        return self._spilled + len(self._end)

    @property
    def _spilled(self) -> int:
        return 0 if self._file is None else self._file.nbytes

    def append(self, data: bytes | memoryview) -> None:
        """Adds bytes; raises OSError if a temporary file cannot be written."""
        self._end += data
        if len(self._end) >= _KEPT:
            self._spill()

    def read(self, begin: int, end: int) -> bytes:
        """Returns a part."""
        spilled = self._spilled
        if begin >= spilled:
            return bytes(self._end[begin - spilled : end - spilled])
        assert self._file is not None
        found = self._file.read(begin, min(end, spilled) - begin)
        return found + bytes(self._end[: max(0, end - spilled)])

    def view(self) -> memoryview:
        """Returns all bytes: a copy if they are in memory, otherwise the mapped file."""
        if self._file is None:
            return memoryview(bytes(self._end))
        self._spill()
        return self._file.mapped()

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryData(self._folder)
        if self._end:
            self._file.append(bytes(self._end))
            self._end.clear()


class SpilledNumbers:
    """Rows of int64 numbers; rows can be added. Used by one thread.

    Args:
        width: The length of a row.
        folder: As of `TemporaryData`.
    """

    def __init__(self, width: int = 1, folder: Path | None = None) -> None:
        self._width = width
        self._data = SpilledBytes(folder)

    def __len__(self) -> int:
        return len(self._data) // (8 * self._width)

    def append(self, row: Iterable[int]) -> None:
        """Adds a row of `width` numbers; OverflowError if one needs more than 64 bits."""
        self._data.append(array("q", row).tobytes())

    def row(self, number: int) -> array[int]:
        """Returns a row."""
        size = 8 * self._width
        return array("q", self._data.read(number * size, (number + 1) * size))

    def pair(self, number: int) -> tuple[int, int]:
        """Returns the numbers of two rows, one after the other, if `width` is 1."""
        first, second = array("q", self._data.read(8 * number, 8 * number + 16))
        return first, second

    def view(self) -> NDArray[np.int64]:
        """Returns all numbers, int64 (n, width), read-only."""
        return np.frombuffer(self._data.view(), np.int64).reshape(-1, self._width)
