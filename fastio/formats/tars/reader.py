"""Bytes of tars: the seam between what a tar holds and where it lies."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fastio.errors import SourceChanged, SourceNotFound
from fastio.files import only_files

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

    def note_refetch(self) -> None:
        """Counts something that came damaged and is read again."""
        ...


class LocalTars:
    """Tars of the file system, named by their paths; the last ones used stay open.

    Args:
        stamps: of tars, as `stamp` told when they were opened: other versions are not read.
    """

    def __init__(self, stamps: Mapping[str, str] | None = None) -> None:
        self._stamps = dict(stamps or {})
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def size(self, name: str) -> int:
        """Its size in bytes."""
        return os.fstat(self._descriptor(name).number).st_size

    def check(self, names: Iterable[str]) -> None:
        """Sees to it that tars are what they were when they were opened.

        Raises:
            SourceChanged: one was replaced, or written to.
            SourceNotFound: one is gone.
        """
        for name in names:
            expected = self._stamps.get(name)
            if expected is not None and stamp(name) != expected:
                raise SourceChanged(
                    f"{name} was replaced or written to while it was being read. Open it again, "
                    "and do not write to files that are being read"
                )

    def note_refetch(self) -> None:
        """See `TarReader`; here reading again is no matter of the way."""

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
        found = [self.read(name, offset, length) for offset, length in ranges]
        self.check([name])
        return found

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


def stamp(path: str) -> str:
    """What changes when a local tar changes: its size, time of change and number of the file.

    Raises:
        SourceNotFound: it is not there.
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
    """A file that is open as long as somebody holds this."""

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
