"""The row groups of one file, which are read separately: Parquet, Arrow, and data in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.runtime.ahead import Ahead
from fastio.sources.table.binary_files import ArrowTable, ParquetTable, chunk_ranges
from fastio.sources.table.filters import Filter
from fastio.sources.table.mapped import Mapped
from fastio.sources.table.parquet_columns import ColumnReader
from fastio.sources.table.partitions import Constants
from fastio.sources.table.reading import Table, reading
from fastio.sources.table.spans import Span, bytes_of

_OPEN_FILES = 4  # for each thread


class Source(Protocol):
    """The row groups of one file.

    Attributes:
        has_groups: Whether the file has row groups. If False, they are parts of data in memory.
        lends: Whether batches are views of a mapped file, which are valid only while the file is
            not truncated.
    """

    has_groups: bool
    lends: bool

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """Returns each group's rows, and the approximate bytes of its `varying` columns."""
        ...

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a row group.

        Each batch has at most `rows` rows; if None, the fastest size is chosen.
        """
        ...

    def ahead(self, number: int, columns: list[str]) -> bool:
        """Starts to fetch a row group. Returns False if there is no memory for it now."""
        ...

    def possible(self, wanted: Filter) -> set[int] | None:
        """Returns the row groups that may have matching rows; None if that is unknown."""
        ...

    def close(self) -> None:
        """Releases memory."""
        ...


class OpenFiles(threading.local):
    """The files that a thread has open, ordered by last use.

    Attributes:
        decoder: The thread's decoder of columns.
    """

    def __init__(self) -> None:
        self.files: OrderedDict[str, Any] = OrderedDict()
        self.decoder = _native.ColumnDecoder()

    def __reduce__(self) -> Any:
        return OpenFiles, ()  # open files are not shared between processes

    def get(self, path: str, opener: Callable[[], Any]) -> Any:
        """Returns an open file, and closes the least recently used one if there are too many."""
        file = self.files.pop(path, None)
        if file is None:
            file = opener()
        self.files[path] = file
        if len(self.files) > _OPEN_FILES:
            self.files.popitem(last=False)
        return file


class LocalParquet:
    """The row groups of a memory-mapped Parquet file."""

    has_groups = True
    lends = False

    def __init__(self, table: ParquetTable, opened: OpenFiles) -> None:
        self._file = table.file
        self._path = table.name
        self._metadata = table.metadata
        self._schema = table.schema
        self._opened = opened
        self._columns = ColumnReader(table.name, table.metadata, table.schema)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        with reading(self._path):
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
            self._file.check()
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
            file.check()  # gives a better message if the file was truncated
            raise
        yield from found.to_batches()

    def ahead(self, number: int, columns: list[str]) -> bool:
        return True  # local files are read when they are needed

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
    """The row groups of a Parquet file in a store. The columns of a group are fetched together."""

    has_groups = True
    lends = False

    def __init__(
        self, table: ParquetTable, ahead: Ahead[Sequence[Span]], opened: OpenFiles
    ) -> None:
        self._table = table
        self._ahead = ahead
        self._opened = opened
        self._columns = ColumnReader(table.name, table.metadata, table.schema, checked=True)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        with reading(self._table.name):
            return _parquet_groups(self._table.metadata, varying)

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        key = self._table.name, number, tuple(columns)
        spans = self._ahead.take(key, lambda: self._table.fetch(number, columns))

        def batches(
            file: pa_parquet.ParquetFile, spans: Sequence[Span]
        ) -> Iterator[pa.RecordBatch]:
            if rows is None:
                return self._whole(file, spans, number, columns, threads)
            found: Iterator[pa.RecordBatch] = file.iter_batches(
                rows, row_groups=[number], columns=columns, use_threads=threads
            )
            return found

        yield from self._table.undamaged(number, columns, spans, batches)

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
    """The record batches of a memory-mapped Arrow file."""

    has_groups = True
    lends = True

    def __init__(self, table: ArrowTable, opened: OpenFiles) -> None:
        self._file = table.file
        self._table = table
        self._path = table.name
        self._opened = opened

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        file: Mapped = self._opened.get(self._path, self._open)
        found = []
        for number, rows in enumerate(self._table.batch_rows):
            nbytes = 0
            if varying and rows:
                batch = self._table.mapped_batch(file, number).select(list(varying))
                nbytes = batch.get_total_buffer_size()  # `nbytes` would follow unchecked offsets
            found.append((rows, nbytes))
        return found

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        file: Mapped = self._opened.get(self._path, self._open)
        self._file.check()
        whole = self._table.mapped_batch(file, number)
        self._table.checks.check(whole, number, columns)
        file.check_size()
        for batch in _sliced(whole.select(columns), rows):
            yield batch
            file.check()  # batches are views of the mapping, so check it after their use
            self._file.check()

    def ahead(self, number: int, columns: list[str]) -> bool:
        return True

    def possible(self, wanted: Filter) -> set[int] | None:
        return None

    def close(self) -> None:
        pass

    def _open(self) -> Mapped:
        return Mapped(self._path, pa.ipc.open_file)


class StoredArrow:
    """The record batches of an Arrow file in a store. Each is fetched whole."""

    has_groups = True
    lends = False

    def __init__(self, table: ArrowTable, ahead: Ahead[Sequence[Span]]) -> None:
        self._table = table
        self._ahead = ahead

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        # The sizes of single columns are unknown before a batch is fetched.
        sizes = self._table.body_bytes if varying else [0] * len(self._table.batch_rows)
        return list(zip(self._table.batch_rows, sizes, strict=True))

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        spans = self._ahead.take((self._table.name, number), lambda: self._table.fetch(number))
        whole = self._table.batch(number, spans)
        self._table.checks.check(whole, number, columns)
        yield from _sliced(whole.select(columns), rows)

    def ahead(self, number: int, columns: list[str]) -> bool:
        nbytes = self._table.body_bytes[number]
        key = self._table.name, number
        return self._ahead.begin(key, nbytes, lambda: self._table.fetch(number))

    def possible(self, wanted: Filter) -> set[int] | None:
        return None

    def close(self) -> None:
        self._ahead.clear()


class InMemory:
    """A file that was read into memory, or a memory-mapped Arrow stream."""

    has_groups = False

    def __init__(self, batches: list[pa.RecordBatch], mapped: Mapped | None = None) -> None:
        self._batches = batches
        self._mapped = mapped
        self.lends = mapped is not None

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        return [
            (batch.num_rows, batch.select(list(varying)).nbytes if varying else 0)
            for batch in self._batches
        ]

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        if self._mapped is not None:
            self._mapped.check_size()
        for batch in _sliced(self._batches[number].select(columns), rows):
            yield batch
            if self._mapped is not None:
                self._mapped.check()

    def ahead(self, number: int, columns: list[str]) -> bool:
        return True

    def possible(self, wanted: Filter) -> set[int] | None:
        return None

    def close(self) -> None:
        self._batches = []
        self._mapped = None


class Nothing(InMemory):
    """A file without matching rows, as its partition values show."""

    def __init__(self) -> None:
        super().__init__([])


class Partitioned:
    """The row groups of a file, with the partition columns of its path added."""

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
