"""The bytes of table files that are on this machine: mapped files, and ranges from a store."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.packed.ipc import stamp
from fastio.runtime.files import only_files
from fastio.store import Stamp, Store
from fastio.store.ranges import GAP_BYTES, MERGED_BYTES, coalesce, parallel

if TYPE_CHECKING:
    from fastio.sources.table.objects import TableFile

_CUT_OFF = "{} was cut off while it was being read; write it again"


class Data(ABC):
    """Bytes of a table file that are on this machine: `Mapped` or `Fetched`."""

    @abstractmethod
    def data(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes of a range: uint8 (length,), or fewer if not all are there."""

    @abstractmethod
    def source(self) -> Any:
        """Returns what pyarrow opens for random access."""

    @abstractmethod
    def more(self, ranges: Sequence[tuple[int, int]]) -> Data:
        """Returns the data with further ranges (offset, length)."""

    def opened(self, opener: Callable[[Any], Any]) -> Any:
        """Returns the reader that `opener` creates from `source()`. A mapping keeps it."""
        return opener(self.source())

    def check(self) -> None:  # noqa: B027 - nobody else can change what was read
        """Raises ShardCorrupt if bytes that were read were missing, and zeros in their place."""

    def check_size(self) -> None:  # noqa: B027
        """Raises ShardCorrupt if the file was truncated, even if nothing was read yet."""


class Mapped(Data):
    """A memory-mapped file that pyarrow reads without a copy; see `Data`.

    If the file at `path` is truncated while it is mapped, the process is not killed by a signal.
    The missing part reads as zeros, and `check` reports it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._mapping = _native.Mapping(path)
        self._file = stamp(path)
        self._reader: Any = None

    def source(self) -> pa.BufferReader:
        """See `Data`."""
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

    def data(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes of a range: uint8 (length,), or fewer at the end of the file."""
        found: np.ndarray = self._mapping.data[offset : offset + length]
        return found

    def check(self) -> None:
        """Raises ShardCorrupt if the file was truncated and zeros were read in its place."""
        if self._mapping.damaged:
            raise ShardCorrupt(_CUT_OFF.format(self.path))

    def check_size(self) -> None:
        """Raises ShardCorrupt if the file was truncated, even if nothing of that part was read yet.

        Call it before offsets are followed that were validated earlier: those after the new end
        would read as zeros.
        """
        self.check()
        before = self._file
        with suppress(OSError):  # a missing file is like another one
            now = stamp(self.path)
            same = (now.device, now.inode) == (before.device, before.inode)
            if same and now.nbytes < before.nbytes:
                raise ShardCorrupt(_CUT_OFF.format(self.path))


# Merged ranges share one buffer of any size, which several requests of at most 8 MiB fill.
_WHOLE = 1 << 62

Span = tuple[int, memoryview]


def read_ranges(path: str, size: int, ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """Reads ranges (offset, length) of a local file into memory that no other program can change.

    Args:
        path: The file.
        size: Its size in bytes.
        ranges: What to read.

    Raises:
        ShardCorrupt: If a range exceeds the file, or the file was truncated.
        OSError: If the file cannot be read.
    """
    check_ranges(path, ranges, size)
    found = []
    with open(path, "rb", buffering=0, opener=only_files) as file:
        for offset, length in ranges:
            memory = np.empty(length, np.uint8).data
            done = 0
            while done < length:
                count = os.preadv(file.fileno(), [memory[done:]], offset + done)
                if not count:
                    raise ShardCorrupt(_CUT_OFF.format(path))
                done += count
            found.append((offset, memory))
    return found


def check_ranges(name: str, ranges: Sequence[tuple[int, int]], size: int) -> None:
    """Raises ShardCorrupt if a range (offset, length) exceeds a file of `size` bytes."""
    for offset, length in ranges:
        if offset < 0 or length < 0 or offset + length > size:
            raise ShardCorrupt(
                f"{name}: it refers to bytes {offset} to {offset + length}, but has only {size} "
                "bytes: it is damaged; write it again"
            )


def fetch(store: Store, key: str, stamp: Stamp, ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """Fetches ranges (offset, length) of an object, of the version `stamp`.

    Close ranges are merged, and up to 16 requests run at once. Returns the offset and bytes of what
    was fetched, sorted, without overlaps.

    Raises:
        SourceChanged: If the object has another version now.
        StoreError, SourceNotFound: If the object cannot be read.
    """
    found: list[tuple[int, memoryview]] = []
    tasks = []
    for span in coalesce(ranges, GAP_BYTES, _WHOLE):
        memory = np.empty(span.length, np.uint8).data
        found.append((span.offset, memory))
        for begin in range(0, span.length, MERGED_BYTES):
            part = memory[begin : begin + MERGED_BYTES]
            tasks.append(partial(_receive, store, key, span.offset + begin, part, stamp))
    parallel(tasks)
    return found


def _receive(store: Store, key: str, offset: int, memory: memoryview, stamp: Stamp, _: Any) -> None:
    store.read_into(key, offset, [memory], expect=stamp)


class Fetched(Data):
    """Ranges of a file that were read into memory, as offsets and bytes; see `Data`. Immutable."""

    def __init__(self, source: TableFile, spans: Sequence[Span]) -> None:
        self._source = source
        self.spans = sorted(spans, key=_start)

    def __reduce__(self) -> Any:
        # Ray sends a memoryview as bytes, and pickle refuses it.
        return _received, (self._source, [(offset, bytes(data)) for offset, data in self.spans])

    def data(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes of a range: uint8 (length,), or fewer if no span has all of it."""
        last = bisect_right(self.spans, offset, key=_start) - 1
        before = (self.spans[place] for place in range(last, -1, -1))
        whole = (span for span in before if offset + length <= span[0] + len(span[1]))
        nearest = self.spans[last] if last >= 0 else (offset, memoryview(b""))
        start, data = next(whole, nearest)
        return np.asarray(data)[offset - start : offset - start + length]

    def source(self) -> pa.PythonFile:
        """Returns what pyarrow opens for random access. Other ranges cost a read each."""
        return pa.PythonFile(SpanFile(self._source, self), mode="r")

    def more(self, ranges: Sequence[tuple[int, int]]) -> Fetched:
        """Returns these ranges and others (offset, length), which are fetched if necessary."""
        missing = [each for each in ranges if len(self.data(*each)) < each[1]]
        if not missing:
            return self
        return Fetched(self._source, [*self.spans, *self._source.fetch(missing).spans])

    def joined(self, other: Fetched) -> Fetched:
        """Returns these ranges and others of the same file."""
        return Fetched(self._source, [*self.spans, *other.spans])


def _received(source: TableFile, spans: Sequence[tuple[int, bytes]]) -> Fetched:
    """Returns ranges that another process has sent."""
    return Fetched(source, [(offset, memoryview(data)) for offset, data in spans])


def _start(span: Span) -> int:
    return span[0]


class SeekableFile(io.RawIOBase):
    """A file of a known size for `pyarrow.PythonFile`, of which subclasses define `read`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at


class SpanFile(SeekableFile):
    """A file for `pyarrow.PythonFile` that reads fetched ranges, and fetches what they lack."""

    def __init__(self, source: TableFile, fetched: Fetched) -> None:
        super().__init__(source.size())
        self._source = source
        self._fetched: Fetched | None = fetched

    def read_buffer(self, nbytes: int | None = None) -> memoryview:
        """Returns the next bytes, fewer only at the end; without a copy if one span has them."""
        left = self._size - self._at
        count = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        data = self._bytes(self._at, max(count, 0))
        self._at += len(data)
        return data

    def read(self, nbytes: int | None = None) -> bytes:
        return bytes(self.read_buffer(nbytes))

    def close(self) -> None:
        self._fetched = None
        super().close()

    def _bytes(self, offset: int, count: int) -> memoryview:
        found = None if self._fetched is None else self._fetched.data(offset, count)
        if found is None or len(found) < count:
            found = self._source.fetch([(offset, count)]).data(offset, count)
        return found.data


class ForwardFile(io.RawIOBase):
    """A file for `pyarrow.PythonFile` that is read once, from its beginning to its end."""

    def __init__(self) -> None:
        self._data = memoryview(b"")
        self._at = 0

    def _next(self) -> memoryview:
        """Returns the bytes from `tell()` on, as many as are available; none at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def read_buffer(self, nbytes: int | None = None) -> memoryview:
        """Returns the next bytes, fewer only at the end; without a copy if they are in one part."""
        parts: list[memoryview] = []
        left = _WHOLE if nbytes is None or nbytes < 0 else nbytes
        while left > 0:
            self._data = self._data or self._next()
            if not self._data:
                break
            part, self._data = self._data[:left], self._data[left:]
            parts.append(part)
            left -= len(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def read(self, nbytes: int | None = None) -> bytes:
        return bytes(self.read_buffer(nbytes))

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self._data = memoryview(b"")
        super().close()


class StreamFile(ForwardFile):
    """A file for `pyarrow.PythonFile` that reads an object from its beginning to its end.

    `window` bytes are fetched at a time, by parallel requests of 8 MiB. `begin` is the first byte.
    """

    def __init__(self, source: TableFile, window: int, begin: int = 0) -> None:
        super().__init__()
        self._source = source
        self._begin = begin
        self._size = source.size() - begin
        self._window = window

    def _next(self) -> memoryview:
        # The first read is small, because the caller may want only the first rows.
        window = self._window if self._at else min(self._window, MERGED_BYTES)
        count = min(window, self._size - self._at)
        if count <= 0:
            return memoryview(b"")
        offset = self._begin + self._at
        return self._source.fetch([(offset, count)]).data(offset, count).data
