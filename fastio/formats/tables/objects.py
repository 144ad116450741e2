"""A table's file, on this machine or in a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import xxhash

from fastio.errors import ShardCorrupt, SourceChanged, SourceNotFound, StoreError
from fastio.formats.tables.spans import Span, SpanFile, StreamFile, fetch, python_file
from fastio.shown import without_secrets
from fastio.store import Stamp, Store, join
from fastio.store.ranges import parallel

T = TypeVar("T")

TAIL_BYTES = 64 << 10  # of a file, in which its footer is as a rule
_ATTEMPTS = 6  # to fetch the same bytes twice
_WINDOW_BYTES = 16 << 20  # of text that is fetched at a time

# Names of the folders a=1/b=2 that a file lies in, and what they say; None: no value.
Values = Mapping[str, str | None]


class TableFile(Protocol):
    """A file with a table.

    Attributes:
        name: its path or URL, as messages say it.
        values: what the names of its folders say.
    """

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Values: ...

    def size(self) -> int:
        """Its bytes.

        Raises:
            SourceNotFound: there is no such file.
        """
        ...

    def stamp(self) -> str:
        """What changes when it does."""
        ...

    def check(self) -> None:
        """Sees to it that it is what it was when it was first looked at.

        Raises:
            SourceChanged: it was replaced, or written to.
        """
        ...

    def whole(self) -> Any:
        """What pyarrow opens to read it in any order."""
        ...

    def stream(self) -> Any:
        """An Arrow stream of what it holds, decompressed where its name says so."""
        ...


@dataclass
class LocalFile:
    """A file on this machine, of the version that it has when it is first looked at."""

    name: str
    values: Values = field(default_factory=dict)
    _status: tuple[int, int, int] | None = field(default=None, compare=False, repr=False)

    def size(self) -> int:
        """See `TableFile`."""
        return self._first()[0]

    def stamp(self) -> str:
        """Its name, size and time."""
        size, time_ns, _ = self._first()
        return f"{os.path.basename(self.name)}\0{size}\0{time_ns}"

    def check(self) -> None:
        """Sees to it that it is what it was when it was first looked at.

        Raises:
            SourceChanged: it was replaced, or written to.
        """
        try:
            now = _status(self.name)
        except OSError:
            return  # what is open stays, and opening it says what is wrong
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

    def whole(self) -> str:
        """Its path."""
        return self.name

    def stream(self) -> Any:
        """See `TableFile`."""
        return pa.input_stream(self.name, compression="detect")


class StoreFile:
    """An object of a store. Thread-safe; goes through forks and pickling.

    Args:
        store: of its bucket.
        key: its name there.
        values: what the names of its folders say.
        stamp: its version, None where that is not known: it is asked for then.
    """

    def __init__(self, store: Store, key: str, values: Values, stamp: Stamp | None = None) -> None:
        self.store = store
        self.key = key
        self.values = values
        self.name = without_secrets(join(store.url, key))
        self._stamp = stamp
        self._mark = ""
        self._twice = False

    def size(self) -> int:
        """See `TableFile`."""
        return self.version().size

    def version(self) -> Stamp:
        """The version that is read."""
        if self._stamp is None:
            self._stamp = self.store.stat(self.key)
        return self._stamp

    def stamp(self) -> str:
        """Its name and version, and a hash of its footer where that was read."""
        return f"{self.key.rpartition('/')[2]}\0{self.version().key}\0{self._mark}"

    def check(self) -> None:
        """See `LocalFile.check`; here each request asks for the version."""

    def opened(self, read: Callable[[], T]) -> T:
        """What a function reads that opens the file: footers, which have no checksums.

        Where nothing else guards the way (http), each range comes twice, and both have to be
        equal; elsewhere TLS does, and they come twice only where they cannot be understood.

        Raises:
            ShardCorrupt: from `read`.
        """
        plain = self.store.is_plain
        try:
            self._twice = plain
            return read()
        except ShardCorrupt:
            if plain:
                raise
            self.store.transfers.note_refetch()
            self._twice = True
            return read()
        finally:
            self._twice = False

    def tail(self) -> list[Span]:
        """Its last 64 KiB."""
        count = min(TAIL_BYTES, self.size())
        tail = self.fetch([(self.size() - count, count)])
        self._mark = xxhash.xxh3_64_hexdigest(tail[0][1])
        return tail

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[Span]:
        """Ranges of it; see `spans.fetch`, whose errors name the object here."""
        if not self._twice:
            return self._fetched(ranges)
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
        return found

    def _fetched(self, ranges: Sequence[tuple[int, int]]) -> list[Span]:
        try:
            return fetch(self.store, self.key, self.version(), ranges)
        except ShardCorrupt as error:
            raise ShardCorrupt(f"{self.name}: {error}") from error.__cause__

    def whole(self, spans: Sequence[Span] = ()) -> Any:
        """A file from spans that were fetched; of what they lack, each read is a request."""
        return python_file(SpanFile(self, spans))

    def stream(self) -> Any:
        """See `TableFile`."""
        file = python_file(StreamFile(self, _WINDOW_BYTES))
        return pa.CompressedInputStream(file, "gzip") if self.key.endswith(".gz") else file


def _status(path: str) -> tuple[int, int, int]:
    """Size, time of change in ns and number of a file: of its version, in short."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def as_file(file: TableFile | str) -> TableFile:
    """A path as a file."""
    return LocalFile(file) if isinstance(file, str) else file


def stamp(files: Sequence[TableFile | str]) -> str:
    """A hash of the files' names, sizes and times, which changes when one of them does.

    Raises:
        OSError: one is gone.
    """
    digest = xxhash.xxh3_64()
    for file in map(as_file, files):
        said = "".join(f"\0{name}={value}" for name, value in file.values.items())
        digest.update((file.stamp() + said).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
