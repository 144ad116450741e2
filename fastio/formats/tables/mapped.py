"""Files that pyarrow reads from their mapping, and which may be cut off meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fastio import _native
from fastio.errors import ShardCorrupt


class Mapped:
    """A file that pyarrow reads from its mapping: nothing is copied before it is decoded.

    A file that is cut off meanwhile ends no process: what was read of it is zeros, which `check`
    tells.

    Args:
        path: the file.
        opened: makes pyarrow's reader of its bytes; None where there is no need of one.

    Attributes:
        path: as given.
        reader: pyarrow's.
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
        """The bytes of the file."""
        return self._mapping.data.data

    def buffer(self) -> pa.Buffer:
        """The bytes of the file, as Arrow has them."""
        return pa.py_buffer(self._mapping.data)

    def data(self, offset: int, length: int) -> np.ndarray:
        """The bytes of a range: uint8 (length,), or fewer where the file ends."""
        found: np.ndarray = self._mapping.data[offset : offset + length]
        return found

    def ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Has the system read ranges (offset, length) from the disk that are used at once."""
        for offset, length in ranges:
            self._mapping.ahead(offset, length)

    def check(self) -> None:
        """Raises ShardCorrupt where what was read may not be what the file had."""
        if self._mapping.damaged:
            raise ShardCorrupt(f"{self.path} was cut off while it was being read; write it again")

    def check_size(self) -> None:
        """`check`, also for what was cut off and is not noticed before it is read.

        Offsets that were checked are to be walked: those behind the new end would be zeros.
        """
        self.check()
        now = _identity(self.path)
        if now[:2] == self._file[:2] and now[2] < self._file[2]:
            raise ShardCorrupt(f"{self.path} was cut off while it was being read; write it again")


def _identity(path: str) -> tuple[int, int, int]:
    """Device, number and size of a file; what replaced it, or is gone, is another one."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1, 0
    return status.st_dev, status.st_ino, status.st_size
