"""Reads bytes of tars: the interface, and its implementation for local files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fastio.errors import SourceChanged, SourceNotFound
from fastio.runtime.files import only_files

# What a read returns: bytes, or another object with the buffer protocol, for which Python 3.10 has
# no type.
Buffer = Any
_MOST_OPEN = 64


class TarReader(Protocol):
    """Reads ranges of tars by name. Implementations are thread-safe."""

    def size(self, name: str) -> int:
        """Returns the size of a tar in bytes.

        Raises:
            SourceNotFound: If there is no such tar.
        """
        ...

    def read(self, name: str, offset: int, length: int) -> Buffer:
        """Returns the bytes [offset, offset + length), fewer only at the end of the tar.

        Raises:
            SourceNotFound: If there is no such tar.
            OSError: If it cannot be read.
        """
        ...

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Returns the bytes of several ranges (offset, length), in their order."""
        ...

    def note_refetch(self) -> None:
        """Counts data that arrived damaged and is read again."""
        ...


class LocalTars:
    """Reads local tars by their paths. The most recently used ones stay open.

    Args:
        stamps: The stamps of tars when they were opened. Other versions are refused.
    """

    def __init__(self, stamps: Mapping[str, str] | None = None) -> None:
        self._stamps = dict(stamps or {})
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def size(self, name: str) -> int:
        """Returns the size of a tar in bytes."""
        return os.fstat(self._descriptor(name).number).st_size

    def check(self, names: Iterable[str]) -> None:
        """Checks that tars have not changed since they were opened.

        Raises:
            SourceChanged: If one was replaced or written to.
            SourceNotFound: If one no longer exists.
        """
        for name in names:
            expected = self._stamps.get(name)
            if expected is not None and stamp(name) != expected:
                raise SourceChanged(
                    f"{name} was replaced or written to while it was being read. Open it again, "
                    "and do not write to files that are being read"
                )

    def note_refetch(self) -> None:
        """See `TarReader`. Does nothing, because no network is involved."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Returns the bytes [offset, offset + length), fewer only at the end of the tar."""
        file = self._descriptor(name)  # this reference keeps it open
        data = os.pread(file.number, length, offset)
        while 0 < len(data) < length:  # a call reads 2 GiB at most
            more = os.pread(file.number, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of several ranges (offset, length), in their order."""
        found = [self.read(name, offset, length) for offset, length in ranges]
        self.check([name])
        return found

    def close(self) -> None:
        """Closes the files. Reading opens them again."""
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


def stamp(path: str) -> str:
    """Returns the size, time of modification and inode of a local tar, which change when it does.

    Raises:
        SourceNotFound: If it does not exist.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def stamped_bytes(stamp: str) -> int:
    """The size of a local tar by its `stamp`."""
    return int(stamp.partition(" ")[0])


class _Descriptor:
    """An open file, which is closed when the last reference to this object goes."""

    def __init__(self, path: str) -> None:
        self.number = -1
        try:
            self.number = only_files(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise SourceNotFound(f"{path} does not exist") from error
        except OSError as error:
            raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)
