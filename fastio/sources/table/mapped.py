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
    """A memory-mapped file that pyarrow reads without a copy.

    If the file is truncated while it is mapped, the process is not killed by a signal. The missing
    part reads as zeros, and `check` reports it.

    Args:
        path: The path of the file.
        opened: Creates pyarrow's reader of the bytes. By default there is none.

    Attributes:
        path: As given.
        reader: pyarrow's reader, or None.
    """

    def __init__(
        self, path: str, opened: Callable[[pa.BufferReader], Any] = lambda source: None
    ) -> None:
        self.path = path
        self._mapping = _native.Mapping(path)
        self._file = _identity(path)
        self.reader = opened(pa.BufferReader(self.buffer()))

    @property
    def view(self) -> memoryview:
        """The contents of the file."""
        return self._mapping.data.data

    def buffer(self) -> pa.Buffer:
        """Returns the contents of the file as an Arrow buffer."""
        return pa.py_buffer(self._mapping.data)

    def data(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes of a range: uint8 (length,), or fewer at the end of the file."""
        found: np.ndarray = self._mapping.data[offset : offset + length]
        return found

    def ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Asks the system to read ranges (offset, length) from the disk that are needed soon."""
        for offset, length in ranges:
            self._mapping.ahead(offset, length)

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
