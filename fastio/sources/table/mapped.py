"""Memory-mapped files for pyarrow, which are safe to read even if they are truncated meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fastio import _native
from fastio.errors import ShardCorrupt


class Mapped:
    """A memory-mapped file that pyarrow reads without a copy; see `fastio.sources.table.objects`.

    If the file is truncated while it is mapped, the process is not killed by a signal. The missing
    part reads as zeros, and `check` reports it.

    Args:
        path: The path of the file.

    Attributes:
        path: As given.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._mapping = _native.Mapping(path)
        self._file = _identity(path)
        self._reader: Any = None

    def source(self) -> pa.BufferReader:
        """Returns what pyarrow opens for random access."""
        return pa.BufferReader(pa.py_buffer(self._mapping.data))

    def opened(self, opener: Callable[[Any], Any]) -> Any:
        """Returns pyarrow's reader of the file, which is created once."""
        if self._reader is None:
            self._reader = opener(self.source())
        return self._reader

    def more(self, ranges: Sequence[tuple[int, int]]) -> Mapped:
        """Asks the system to read ranges (offset, length) from the disk that are needed soon."""
        for offset, length in ranges:
            self._mapping.ahead(offset, length)
        return self

    @property
    def view(self) -> memoryview:
        """The contents of the file."""
        return self._mapping.data.data

    def joined(self, other: Mapped) -> Mapped:
        """Returns this mapping, which has everything."""
        return self

    def data(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes of a range: uint8 (length,), or fewer at the end of the file."""
        found: np.ndarray = self._mapping.data[offset : offset + length]
        return found

    def check(self) -> None:
        """Raises ShardCorrupt if the file was truncated and zeros were read in its place."""
        if self._mapping.damaged:
            raise ShardCorrupt(f"{self.path} was cut off while it was being read; write it again")

    def check_size(self) -> None:
        """Raises ShardCorrupt if the file was truncated, even if nothing of that part was read yet.

        Call it before offsets are followed that were validated earlier: those after the new end
        would read as zeros.
        """
        self.check()
        now = _identity(self.path)
        if now[:2] == self._file[:2] and now[2] < self._file[2]:
            raise ShardCorrupt(f"{self.path} was cut off while it was being read; write it again")


def _identity(path: str) -> tuple[int, int, int]:
    """Returns device, inode and size of a file; a missing file is like another one."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1, 0
    return status.st_dev, status.st_ino, status.st_size
