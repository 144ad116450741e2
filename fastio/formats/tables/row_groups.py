"""The row groups of one file, each read by itself: of Parquet and Arrow files, and of memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.formats.tables.ahead import Ahead
from fastio.formats.tables.binary_files import ArrowTable, ParquetTable, chunk_ranges
from fastio.formats.tables.filters import Filter
from fastio.formats.tables.parquet_columns import ColumnReader
from fastio.formats.tables.partitions import Constants
from fastio.formats.tables.reading import Table
from fastio.formats.tables.spans import Span, bytes_of

_OPEN_FILES = 4  # of each thread


class Source(Protocol):
    """The row groups of one file.

    Attributes:
        has_groups: False: they are parts of what is in memory.
        lends: batches are views of a mapped file, and right while it is not cut off.
    """

    has_groups: bool
    lends: bool

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """Rows, and about the bytes of columns of varying width, of each."""
        ...

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """The record batches of one, of at most `rows` rows; None: as it is fastest."""
        ...

    def ahead(self, number: int, columns: list[str]) -> bool:
        """Begins to fetch one; False: there is no room for it now."""
        ...

    def possible(self, wanted: Filter) -> set[int] | None:
        """Which of them may have rows that are wanted; None: nothing is known."""
        ...

    def close(self) -> None:
        """Lets go of what is in memory."""
        ...


class OpenFiles(threading.local):
    """The files that a thread has open, the one used last at the end.

    Attributes:
        decoder: the thread's, of columns.
    """

    def __init__(self) -> None:
        self.files: OrderedDict[str, Any] = OrderedDict()
        self.decoder = _native.ColumnDecoder()

    def __reduce__(self) -> Any:
        return OpenFiles, ()  # another process opens its own

    def get(self, path: str, opener: Callable[[], Any]) -> Any:
        """A file, opened if need be; the one not used for the longest time is closed."""
        file = self.files.pop(path, None)
        if file is None:
            file = opener()
        self.files[path] = file
        if len(self.files) > _OPEN_FILES:
            self.files.popitem(last=False)
        return file


class Mapped:
    """A file that pyarrow reads from its mapping: nothing is copied before it is decoded.

    A file that is cut off meanwhile ends no process: what was read of it is zeros, which `check`
    tells.

    Args:
        path: the file.
        opened: makes pyarrow's reader of its bytes.

    Attributes:
        reader: pyarrow's.
    """

    def __init__(self, path: str, opened: Callable[[pa.BufferReader], Any]) -> None:
        self._path = path
        self._mapping = _native.Mapping(path)
        self.reader = opened(pa.BufferReader(pa.py_buffer(self._mapping.data)))

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
            raise ShardCorrupt(f"{self._path} was cut off while it was read: write it again")


class LocalParquet:
    """A Parquet file's row groups, mapped."""

    has_groups = True
    lends = False

    def __init__(self, table: ParquetTable, opened: OpenFiles) -> None:
        self._path = table.name
        self._metadata = table.metadata
        self._schema = table.schema
        self._opened = opened
        self._columns = ColumnReader(table.name, table.metadata, table.schema)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        return _parquet_groups(self._metadata, varying)

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        file: Mapped = self._opened.get(self._path, self._open)
        file.ahead(chunk_ranges(self._metadata, number, columns, self._path))
        if rows is None:
            batches = self._whole(file, number, columns, threads)
        else:
            batches = file.reader.iter_batches(
                rows, row_groups=[number], columns=columns, use_threads=threads
            )
        for batch in batches:
            file.check()
            yield batch

    def _whole(
        self, file: Mapped, number: int, columns: list[str], threads: bool
    ) -> Iterator[pa.RecordBatch]:
        def others(names: list[str]) -> pa.Table:
            return file.reader.read_row_group(number, columns=names, use_threads=threads)

        decoder = self._opened.decoder
        try:
            found = self._columns.read(number, columns, file.data, others, decoder, threads)
        except ShardCorrupt:
            file.check()  # which knows better
            raise
        yield from found.to_batches()

    def ahead(self, number: int, columns: list[str]) -> bool:
        return True  # files here are read when they are needed

    def possible(self, wanted: Filter) -> set[int] | None:
        return wanted.possible(self._metadata, self._schema)

    def possible_with(self, wanted: Filter, schema: pa.Schema, constants: Constants) -> set[int]:
        return wanted.possible(self._metadata, schema, constants)

    def close(self) -> None:
        pass

    def _open(self) -> Mapped:
        return Mapped(
            self._path,
            lambda source: pa_parquet.ParquetFile(
                source, metadata=self._metadata, pre_buffer=False
            ),
        )


class StoredParquet:
    """The row groups of a Parquet file in a store: what their columns take is fetched at once."""

    has_groups = True
    lends = False

    def __init__(self, table: ParquetTable, ahead: Ahead, opened: OpenFiles) -> None:
        self._table = table
        self._ahead = ahead
        self._opened = opened
        self._columns = ColumnReader(table.name, table.metadata, table.schema)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        return _parquet_groups(self._table.metadata, varying)

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        key = self._table.name, number, tuple(columns)
        spans = self._ahead.take(key, lambda: self._table.fetch(number, columns))
        with self._table.opened(spans) as file:
            if rows is None:
                yield from self._whole(file, spans, number, columns, threads)
            else:
                yield from file.iter_batches(
                    rows, row_groups=[number], columns=columns, use_threads=threads
                )

    def _whole(
        self,
        file: pa_parquet.ParquetFile,
        spans: Sequence[Span],
        number: int,
        columns: list[str],
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        def others(names: list[str]) -> pa.Table:
            return file.read_row_group(number, columns=names, use_threads=threads)

        data = partial(bytes_of, spans)
        decoder = self._opened.decoder
        table = self._columns.read(number, columns, data, others, decoder, threads)
        yield from table.to_batches()

    def ahead(self, number: int, columns: list[str]) -> bool:
        key = self._table.name, number, tuple(columns)
        ranges = chunk_ranges(self._table.metadata, number, columns, self._table.name)
        nbytes = sum(length for _, length in ranges)
        return self._ahead.begin(key, nbytes, lambda: self._table.fetch(number, columns))

    def possible(self, wanted: Filter) -> set[int] | None:
        return wanted.possible(self._table.metadata, self._table.schema)

    def possible_with(self, wanted: Filter, schema: pa.Schema, constants: Constants) -> set[int]:
        return wanted.possible(self._table.metadata, schema, constants)

    def close(self) -> None:
        self._ahead.clear()


class LocalArrow:
    """An Arrow file's record batches, mapped."""

    has_groups = True
    lends = True

    def __init__(self, table: ArrowTable, opened: OpenFiles) -> None:
        self._path = table.name
        self._counts = table.batch_rows
        self._opened = opened

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        file: Mapped = self._opened.get(self._path, self._open)
        found = []
        for number, rows in enumerate(self._counts):
            nbytes = 0
            if varying and rows:
                nbytes = file.reader.get_batch(number).select(list(varying)).nbytes
            found.append((rows, nbytes))
        return found

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        file: Mapped = self._opened.get(self._path, self._open)
        for batch in _sliced(file.reader.get_batch(number).select(columns), rows):
            yield batch
            file.check()  # nothing of it was copied before

    def ahead(self, number: int, columns: list[str]) -> bool:
        return True

    def possible(self, wanted: Filter) -> set[int] | None:
        return None

    def close(self) -> None:
        pass

    def _open(self) -> Mapped:
        return Mapped(self._path, pa.ipc.open_file)


class StoredArrow:
    """The record batches of an Arrow file in a store, each fetched whole."""

    has_groups = True
    lends = False

    def __init__(self, table: ArrowTable, ahead: Ahead) -> None:
        self._table = table
        self._ahead = ahead

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        # Which columns take how much is not known before they are there.
        sizes = self._table.body_bytes if varying else [0] * len(self._table.batch_rows)
        return list(zip(self._table.batch_rows, sizes, strict=True))

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        spans = self._ahead.take((self._table.name, number), lambda: self._table.fetch(number))
        yield from _sliced(self._table.batch(number, spans).select(columns), rows)

    def ahead(self, number: int, columns: list[str]) -> bool:
        nbytes = self._table.body_bytes[number]
        key = self._table.name, number
        return self._ahead.begin(key, nbytes, lambda: self._table.fetch(number))

    def possible(self, wanted: Filter) -> set[int] | None:
        return None

    def close(self) -> None:
        self._ahead.clear()


class InMemory:
    """A file that was read into memory."""

    has_groups = False
    lends = False

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        return [
            (batch.num_rows, batch.select(list(varying)).nbytes if varying else 0)
            for batch in self._batches
        ]

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        yield from _sliced(self._batches[number].select(columns), rows)

    def ahead(self, number: int, columns: list[str]) -> bool:
        return True

    def possible(self, wanted: Filter) -> set[int] | None:
        return None

    def close(self) -> None:
        self._batches = []


class Nothing(InMemory):
    """A file whose folders say that it has no rows that are wanted."""

    def __init__(self) -> None:
        super().__init__([])


class Partitioned:
    """A file's row groups with the columns that its folders are."""

    def __init__(self, inner: Source, file: Table, schema: pa.Schema, constants: Constants) -> None:
        self._inner = inner
        self._of_file = file.schema
        self._schema = schema
        self._constants = constants
        self.has_groups, self.lends = inner.has_groups, inner.lends

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        return self._inner.groups([n for n in varying if n not in self._constants.fields])

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        reads = self._constants.to_read(columns, self._of_file)
        for batch in self._inner.read(number, reads, rows, threads):
            yield self._constants.add(batch, columns)

    def ahead(self, number: int, columns: list[str]) -> bool:
        return self._inner.ahead(number, self._constants.to_read(columns, self._of_file))

    def possible(self, wanted: Filter) -> set[int] | None:
        if isinstance(self._inner, (LocalParquet, StoredParquet)):
            return self._inner.possible_with(wanted, self._schema, self._constants)
        return None

    def close(self) -> None:
        self._inner.close()


def _parquet_groups(
    metadata: pa_parquet.FileMetaData, varying: Sequence[str]
) -> list[tuple[int, int]]:
    columns = metadata.row_group(0).num_columns if metadata.num_row_groups and varying else 0
    first = metadata.row_group(0) if columns else None
    wide = [
        column
        for column in range(columns)
        if first is not None and first.column(column).path_in_schema.split(".")[0] in varying
    ]
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        nbytes = sum(group.column(column).total_uncompressed_size for column in wide)
        found.append((group.num_rows, nbytes))
    return found


def _sliced(batch: pa.RecordBatch, rows: int | None) -> Iterator[pa.RecordBatch]:
    step = rows or max(batch.num_rows, 1)
    return (batch.slice(begin, step) for begin in range(0, batch.num_rows, step))
