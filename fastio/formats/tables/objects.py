"""A table's file, on this machine or in a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import xxhash

from fastio.errors import ShardCorrupt, SourceNotFound
from fastio.formats.tables.spans import Span, SpanFile, StreamFile, fetch, python_file
from fastio.store import Store, join, shown

TAIL_BYTES = 64 << 10  # of a file, in which its footer is as a rule
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

    def whole(self) -> Any:
        """What pyarrow opens to read it in any order."""
        ...

    def stream(self) -> Any:
        """An Arrow stream of what it holds, decompressed where its name says so."""
        ...


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine."""

    name: str
    values: Values = field(default_factory=dict)

    def size(self) -> int:
        """See `TableFile`."""
        try:
            return os.path.getsize(self.name)
        except OSError as error:
            raise SourceNotFound(f"{self.name} cannot be read: {error}") from error

    def stamp(self) -> str:
        """Its name, size and time."""
        status = os.stat(self.name)
        name = os.path.basename(self.name)
        return f"{name}\0{status.st_size}\0{status.st_mtime_ns}"

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
        size: its bytes, None where that is not known.
    """

    def __init__(self, store: Store, key: str, values: Values, size: int | None = None) -> None:
        self.store = store
        self.key = key
        self.values = values
        self.name = shown(join(store.url, key))
        self._size = size
        self._mark = ""

    def size(self) -> int:
        """See `TableFile`."""
        if self._size is None:
            self._size = self.store.size(self.key)
        return self._size

    def stamp(self) -> str:
        """Its name and size, and a hash of its footer where that was read."""
        return f"{self.key.rpartition('/')[2]}\0{self.size()}\0{self._mark}"

    def tail(self) -> list[Span]:
        """Its last 64 KiB."""
        count = min(TAIL_BYTES, self.size())
        tail = self.fetch([(self.size() - count, count)])
        self._mark = xxhash.xxh3_64_hexdigest(tail[0][1])
        return tail

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[Span]:
        """Ranges of it; see `spans.fetch`, whose errors name the object here."""
        try:
            return fetch(self.store, self.key, self.size(), ranges)
        except ShardCorrupt as error:
            raise ShardCorrupt(f"{self.name}: {error}") from error.__cause__

    def whole(self, spans: Sequence[Span] = ()) -> Any:
        """A file from spans that were fetched; of what they lack, each read is a request."""
        return python_file(SpanFile(self, spans))

    def stream(self) -> Any:
        """See `TableFile`."""
        file = python_file(StreamFile(self, _WINDOW_BYTES))
        return pa.CompressedInputStream(file, "gzip") if self.key.endswith(".gz") else file


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
