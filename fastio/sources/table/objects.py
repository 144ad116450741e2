"""The files of a table, on this machine or in a store."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import xxhash

from fastio.errors import FastioError, ShardCorrupt, SourceChanged, SourceNotFound, StoreError
from fastio.shown import without_secrets
from fastio.sources.listed import About
from fastio.sources.table.data import (
    Data,
    Fetched,
    Mapped,
    Span,
    StreamFile,
    check_ranges,
    fetch,
    read_ranges,
)
from fastio.sources.table.names import separator_of, table_kind
from fastio.store import Stamp, Store, absolute_path, join
from fastio.store.ranges import parallel

T = TypeVar("T")

TAIL_BYTES = 64 << 10  # read from the end of a file, which usually includes the whole footer
_ATTEMPTS = 6  # requests to get the same bytes twice
_WINDOW_BYTES = 16 << 20  # of a text file, fetched at a time

# The partition values in a path such as a=1/b=2/file; None stands for a null.
Values = Mapping[str, str | None]


class TableFile(ABC):
    """A file that holds a table, on this machine or in a store. Readers need not know which.

    Attributes:
        name: The path or URL, for messages.
        values: The partition values in the file's path.
        remote: Whether it is in a store.
        about: What is known of it beside its name.
        looked_into: The table, if it was opened to look into it and is to be opened again.
    """

    name: str
    values: Values
    remote: bool
    about: About | None = None
    looked_into: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "looked_into": None}

    @property
    def kind(self) -> str:
        """The format: "parquet", "arrow", "csv", "jsonl", "lance" or "text"; empty if unknown."""
        known = None if self.about is None else self.about.table
        return known or table_kind(self.name) or ""

    @property
    def separator(self) -> str:
        """What separates the values of a line, if it is a CSV file."""
        return separator_of(self.name) if self.about is None else self.about.separator

    @abstractmethod
    def size(self) -> int:
        """Returns the size in bytes; SourceNotFound if there is no such file."""

    @abstractmethod
    def stamp(self) -> str:
        """Returns a text that changes when the file does."""

    @abstractmethod
    def fetch(self, ranges: Sequence[tuple[int, int]]) -> Fetched:
        """Reads ranges (offset, length) into memory.

        Raises:
            ShardCorrupt: If the file has changed, or does not have these bytes.
            StoreError: If they cannot be read.
        """

    @abstractmethod
    def intact(
        self, data: Data, fetch: Callable[[], Data], read: Callable[[Any], Iterator[T]]
    ) -> Iterator[T]:
        """Yields what `read` reads from data, if the data is whole.

        Args:
            data: The bytes.
            fetch: Gets them again. Data from a store that cannot be read may have been damaged on
                the way.
            read: Reads the data. It must yield the same items for the same contents.

        Raises:
            ShardCorrupt, pyarrow.ArrowException, OSError: As raised by `read`.
            ShardCorrupt, SourceChanged: If a local file was truncated, replaced or written to.
        """

    @property
    @abstractmethod
    def is_compressed(self) -> bool:
        """Whether `stream` decompresses the contents, because the name ends so."""

    @abstractmethod
    def stream(self, begin: int = 0) -> Any:
        """Opens the contents as an Arrow stream.

        Args:
            begin: The first byte; 0 if the contents are compressed.
        """

    def check(self) -> None:  # noqa: B027 - of a store, every request checks the version
        """Raises SourceChanged if the file was replaced or written to since it was opened."""

    def opened(self, read: Callable[[], None]) -> None:
        """Calls a function that opens the file and reads its footer."""
        read()
        self.check()

    def tail(self) -> Fetched:
        """Reads the last 64 KiB."""
        count = min(TAIL_BYTES, self.size())
        return self.fetch([(self.size() - count, count)])


@dataclass
class LocalFile(TableFile):
    """A file on this machine. Its version is recorded when it is first used."""

    name: str
    values: Values = field(default_factory=dict)
    _status: tuple[int, int, int] | None = field(default=None, compare=False, repr=False)
    remote = False

    def __post_init__(self) -> None:
        self.name = absolute_path(self.name)

    def size(self) -> int:
        """See `TableFile`."""
        return self._first()[0]

    def stamp(self) -> str:
        """Returns the file's name, size and time of modification."""
        size, time_ns, _ = self._first()
        return f"{os.path.basename(self.name)}\0{size}\0{time_ns}"

    def check(self) -> None:
        """See `TableFile`."""
        try:
            now = _status(self.name)
        except OSError:
            return  # an open file stays readable, and opening it reports the error
        if now != self._first():
            raise SourceChanged(
                f"{self.name} was replaced or written to while it was being read. Open it again, "
                "and do not write to files that are being read"
            )

    def _first(self) -> tuple[int, int, int]:
        if self._status is None:
            try:
                self._status = _status(self.name)
            except OSError as error:
                raise SourceNotFound(f"{self.name} cannot be read: {error}") from error
        return self._status

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> Fetched:
        """Reads the ranges into memory; see `TableFile`."""
        try:
            return Fetched(self, read_ranges(self.name, self.size(), ranges))
        except OSError as error:
            raise ShardCorrupt(f"{self.name} cannot be read: {error}") from error

    def mapped(self) -> Mapped:
        """Maps the whole file, for readers that use its bytes once and do not trust them.

        Raises:
            SourceChanged: The file was replaced or written to. The mapping is not kept then.
        """
        found = Mapped(self.name)
        self.check()
        return found

    def intact(
        self, data: Data, fetch: Callable[[], Data], read: Callable[[Any], Iterator[T]]
    ) -> Iterator[T]:
        """See `TableFile`. Checks the file before and after the use of each item."""
        try:
            for found in read(data):
                self._check_read(data)
                yield found
            self._check_read(data)  # items may be views of the mapping
        except (ShardCorrupt, SourceChanged, pa.ArrowException, OSError):
            data.check_size()  # gives a better message if the file was truncated
            raise

    def _check_read(self, data: Data) -> None:
        data.check()
        self.check()

    @property
    def is_compressed(self) -> bool:
        """See `TableFile`."""
        return codec_of(self.name) is not None

    def stream(self, begin: int = 0) -> Any:
        """See `TableFile`."""
        return decompressed(self.name, begin)


def codec_of(path: str) -> str | None:
    """Returns pyarrow's name of the compression of a file (.gz, .zst, ...), by its name."""
    suffix = os.path.splitext(path)[1]
    try:
        return str(pa.Codec.detect(f"a{suffix}").name)
    except (TypeError, ValueError):  # pyarrow raises one or the other for a name of no codec
        return None


def decompressed(path: str, begin: int = 0) -> Any:
    """Returns a stream of a local file's bytes, decompressed if its name ends in .gz, .zst, ...

    Args:
        path: The path.
        begin: The first byte; 0 for a compressed file.
    """
    # pyarrow takes a path whose name is not UTF-8 as bytes only.
    file = pa.OSFile(os.fsencode(path))
    if begin:
        file.seek(begin)
    return pa.input_stream(file, compression=codec_of(path))


class StoreFile(TableFile):
    """An object of a store, of which ranges are fetched. Thread-safe; can be forked and pickled.

    Args:
        store: The store of the object's bucket.
        key: The object's name in the store.
        values: The partition values in the object's path.
        stamp: The object's version. If None, it is requested when it is needed.
    """

    remote = True

    def __init__(self, store: Store, key: str, values: Values, stamp: Stamp | None = None) -> None:
        self.store = store
        self.key = key
        self.values = values
        self.name = without_secrets(join(store.url, key))
        self._stamp = stamp
        self._mark = ""
        self._twice = False

    @property
    def url(self) -> str:
        """The URL of the object, for other readers than the store."""
        return join(self.store.url, self.key)

    def size(self) -> int:
        """See `TableFile`."""
        return self.version().size

    def version(self) -> Stamp:
        """Returns the version that is read, which is requested once."""
        if self._stamp is None:
            self._stamp = self.store.stat(self.key)
        return self._stamp

    def stamp(self) -> str:
        """Returns the name, the version, and a hash of the footer if that was read."""
        return f"{self.key.rpartition('/')[2]}\0{self.version().key}\0{self._mark}"

    def opened(self, read: Callable[[], None]) -> None:
        """Calls a function that opens the file and reads footers, which have no checksums.

        Without TLS (plain http) each range is fetched twice and both results must be equal. With
        TLS, ranges are fetched twice only if the first result cannot be parsed.
        """
        plain = self.store.is_plain
        try:
            self._twice = plain
            read()
        except ShardCorrupt:
            if plain:
                raise
            self.store.transfers.note_refetch()
            self._twice = True
            read()
        finally:
            self._twice = False

    def tail(self) -> Fetched:
        """Fetches the last 64 KiB, of which `stamp` has a hash."""
        tail = super().tail()
        self._mark = xxhash.xxh3_64_hexdigest(tail.spans[0][1])
        return tail

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> Fetched:
        """See `TableFile`, and `data.fetch`. Errors name the object."""
        if not self._twice:
            return Fetched(self, self._fetched(ranges))
        *seen, found = parallel([lambda _: self._fetched(ranges)] * 2)
        while found not in seen:
            if len(seen) == _ATTEMPTS - 1:
                raise StoreError(
                    f"{self.name}: each of {_ATTEMPTS} requests for the same bytes returned "
                    "different ones; check the proxies and caches between this machine and its "
                    "server"
                )
            seen.append(found)
            self.store.transfers.note_refetch()
            found = self._fetched(ranges)
        return Fetched(self, found)

    def _fetched(self, ranges: Sequence[tuple[int, int]]) -> list[Span]:
        check_ranges(self.name, ranges, self.size())
        return fetch(self.store, self.key, self.version(), ranges)

    def intact(
        self, data: Data, fetch: Callable[[], Data], read: Callable[[Any], Iterator[T]]
    ) -> Iterator[T]:
        """See `TableFile`. Fetches data that cannot be read again, until it is the same."""
        given = 0
        for attempt in range(_ATTEMPTS):
            try:
                for number, found in enumerate(read(data)):
                    if number >= given:
                        given += 1
                        yield found
                return
            except (ShardCorrupt, pa.ArrowException, OSError) as error:
                ours = isinstance(error, FastioError) and not isinstance(error, ShardCorrupt)
                if ours or attempt + 1 == _ATTEMPTS:
                    raise
                fresh = fetch()
                if _spans(fresh) == _spans(data):
                    raise
                self.store.transfers.note_refetch()
                data = fresh

    @property
    def is_compressed(self) -> bool:
        """See `TableFile`."""
        return self.key.endswith(".gz")

    def stream(self, begin: int = 0) -> Any:
        """See `TableFile`."""
        file = pa.PythonFile(StreamFile(self, _WINDOW_BYTES, begin), mode="r")
        return pa.CompressedInputStream(file, "gzip") if self.is_compressed else file


def _spans(data: Data) -> list[Span]:
    assert isinstance(data, Fetched)
    return data.spans


def _status(path: str) -> tuple[int, int, int]:
    """Returns size, time of modification in ns and inode, which change with the file's version."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def as_file(file: TableFile | str) -> TableFile:
    """Returns a file object for a path."""
    return LocalFile(file) if isinstance(file, str) else file


def stamp(files: Sequence[TableFile | str]) -> str:
    """Returns a hash of the files' stamps and partition values, which changes when a file does."""
    digest = xxhash.xxh3_64()
    for file in map(as_file, files):
        said = "".join(f"\0{name}={value}" for name, value in file.values.items())
        digest.update((file.stamp() + said).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
