"""Bytes of tars: the seam between what a tar holds and where it lies."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from fastio.errors import SourceNotFound

# What a read gives: bytes, or anything else that has the buffer protocol, which Python 3.10 has no
# type for.
Buffer = Any
_MOST_OPEN = 64


class TarReader(Protocol):
    """Ranges of tars by name. Safe to use from several threads."""

    def size(self, name: str) -> int:
        """Its size in bytes.

        Raises:
            SourceNotFound: there is no such tar.
        """
        ...

    def read(self, name: str, offset: int, length: int) -> Buffer:
        """The bytes [offset, offset + length), fewer only where the tar ends before.

        Raises:
            SourceNotFound: there is no such tar.
            OSError: it cannot be read.
        """
        ...

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Several of them, (offset, length) each, in their order."""
        ...


class LocalTars:
    """Tars of the file system, named by their paths; the last ones used stay open."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def size(self, name: str) -> int:
        """Its size in bytes."""
        return os.fstat(self._descriptor(name).number).st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length), fewer only where the tar ends before."""
        file = self._descriptor(name)  # stays open while it is named here
        data = os.pread(file.number, length, offset)
        while 0 < len(data) < length:  # a call reads 2 GiB at most
            more = os.pread(file.number, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several of them, (offset, length) each, in their order."""
        return [self.read(name, offset, length) for offset, length in ranges]

    def close(self) -> None:
        """Lets go of the files; reading opens them again."""
        with self._lock:
            self._open.clear()

    def _descriptor(self, name: str) -> _Descriptor:
        with self._lock:
            file = self._open.get(name)
            if file is None:
                file = self._open[name] = _Descriptor(name)
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(name)
            return file


class _Descriptor:
    """A file that is open as long as somebody holds this."""

    def __init__(self, path: str) -> None:
        self.number = -1
        try:
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SourceNotFound(f"{path} does not exist") from error
        except OSError as error:
            raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)
