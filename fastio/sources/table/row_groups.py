"""The row groups of one file, which are read separately: Parquet, Arrow, and data in memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio import _native
from fastio.errors import SchemaError
from fastio.runtime.ahead import Ahead
from fastio.runtime.threads import DaemonPool
from fastio.sources.table.arrow import ArrowTable
from fastio.sources.table.data import Data
from fastio.sources.table.filters import Constants, Filter, unwrapped
from fastio.sources.table.objects import LocalFile, TableFile
from fastio.sources.table.parquet import (
    ColumnReader,
    ParquetTable,
    with_checked_dictionaries,
)
from fastio.sources.table.reading import Table, reading
from fastio.sources.table.tables import Tables

_OPEN_FILES = 4  # for each thread


class Source(ABC):
    """The row groups of one file, which are read separately.

    Attributes:
        has_groups: Whether the file has row groups. If False, they are parts of data in memory.
        lends: Whether batches are views of a mapped file, which other programs can change.
    """

    has_groups: bool = False
    lends: bool = False

    @abstractmethod
    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """Returns each group's rows, and the approximate bytes of its `varying` columns."""

    @abstractmethod
    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a row group.

        Each batch has at most `rows` rows; if None, the fastest size is chosen.
        """

    def ahead(self, number: int, columns: list[str]) -> bool:
        """Starts to fetch a row group. Returns False if there is no memory for it now."""
        return True

    def possible(self, wanted: Filter, constants: Constants | None = None) -> set[int] | None:
        """Returns the row groups that may have matching rows; None if that is unknown.

        `constants` are the partition columns of the file, if it has any.
        """
        return None

    def close(self) -> None:
        """Releases memory."""
        return None


class OpenFiles(threading.local):
    """The files that a thread has open, ordered by last use, and its decoder of columns."""

    def __init__(self) -> None:
        self.files: OrderedDict[Hashable, Any] = OrderedDict()
        self.decoder = _native.ColumnDecoder()

    def __reduce__(self) -> Any:
        return OpenFiles, ()  # open files are not shared between processes

    def get(self, key: Hashable, opener: Callable[[], Any]) -> Any:
        """Returns an open file, and closes the least recently used one if there are too many."""
        file = self.files.pop(key, None)
        if file is None:
            file = opener()
        self.files[key] = file
        if len(self.files) > _OPEN_FILES:
            self.files.popitem(last=False)
        return file


class AtHand:
    """The bytes of row groups: local files stay open in each thread, others are fetched ahead.

    Args:
        nbytes: The memory limit in bytes for fetches that are running or not taken yet.
    """

    def __init__(self, nbytes: int) -> None:
        self._ahead: Ahead[Data] = Ahead(nbytes, name="fastio-table-ahead")
        self._opened = OpenFiles()

    @property
    def decoder(self) -> _native.ColumnDecoder:
        return self._opened.decoder

    def opened(self, key: Hashable, opener: Callable[[], Any]) -> Any:
        """Returns a file that `opener` opens, and that this thread keeps open for a while."""
        return self._opened.get(key, opener)

    def take(self, file: TableFile, key: Hashable, fetch: Callable[[], Data]) -> Data:
        """Returns the bytes of a row group in a store, which is identified by file and key."""
        return self._ahead.take((file.name, key), fetch)

    def begin(self, file: TableFile, key: Hashable, nbytes: int, fetch: Callable[[], Data]) -> bool:
        """Starts to fetch `nbytes` bytes that `take` will ask for; see `Source.ahead`."""
        return not file.remote or self._ahead.begin((file.name, key), nbytes, fetch)

    def close(self) -> None:
        """Forgets what was fetched and not taken."""
        self._ahead.clear()


class ParquetGroups(Source):
    """The row groups of a Parquet file. The columns of a group are fetched together."""

    has_groups = True

    def __init__(self, table: ParquetTable, at_hand: AtHand) -> None:
        self._table = table
        self._at_hand = at_hand
        self._columns = ColumnReader(
            table.name, table.metadata, table.schema, checked=table.file.remote
        )

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        with reading(self._table.name):
            return _parquet_groups(self._table.metadata, varying)

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        ranges = self._table.ranges(number, columns)
        file = self._table.file

        def batches(data: Data) -> Iterator[pa.RecordBatch]:
            reader = self._table.reader(data)
            found: Iterator[pa.RecordBatch]
            if rows is None:
                found = self._whole(reader, data, number, columns, threads)
            else:
                found = reader.iter_batches(
                    rows, row_groups=[number], columns=columns, use_threads=threads
                )
            return with_checked_dictionaries(found, f"{self._table.name}, row group {number}")

        fetch = partial(file.fetch, ranges)
        if isinstance(file, LocalFile):
            data: Data = self._at_hand.opened(file.name, file.mapped).more(ranges)
        else:
            data = self._at_hand.take(file, tuple(ranges), fetch)
        return file.intact(data, fetch, batches)

    def _whole(
        self,
        reader: pa_parquet.ParquetFile,
        data: Data,
        number: int,
        columns: list[str],
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        def others(names: list[str]) -> pa.Table:
            return reader.read_row_group(number, columns=names, use_threads=threads)

        decoder = self._at_hand.decoder
        table = self._columns.read(number, columns, data.data, others, decoder, threads)
        yield from table.to_batches()

    def ahead(self, number: int, columns: list[str]) -> bool:
        ranges, file = self._table.ranges(number, columns), self._table.file
        nbytes = sum(length for _, length in ranges)
        return self._at_hand.begin(file, tuple(ranges), nbytes, partial(file.fetch, ranges))

    def possible(self, wanted: Filter, constants: Constants | None = None) -> set[int] | None:
        schema = self._table.schema if constants is None else constants.schema(self._table.schema)
        return wanted.possible(self._table.metadata, schema, constants)

    def close(self) -> None:
        self._at_hand.close()


class ArrowGroups(Source):
    """The record batches of an Arrow file."""

    has_groups = True

    def __init__(self, table: ArrowTable, at_hand: AtHand) -> None:
        self._table = table
        self._at_hand = at_hand

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        table = self._table
        return [
            (rows, table.nbytes(number, varying) if varying and rows else 0)
            for number, rows in enumerate(table.batch_rows)
        ]

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        table, at_hand = self._table, self._at_hand

        def batches(data: Data) -> Iterator[pa.RecordBatch]:
            return _sliced(table.batch(data, number, columns), rows)

        fetch = partial(table.fetch, number)
        if not table.has_parts:
            return table.file.intact(at_hand.take(table.file, number, fetch), fetch, batches)
        opened = at_hand.opened((table.name, *columns), partial(table.in_parts, columns))
        return table.file.intact(opened, fetch, batches)

    def ahead(self, number: int, columns: list[str]) -> bool:
        table, nbytes = self._table, self._table.ranges(number)[0][1]
        return self._at_hand.begin(table.file, number, nbytes, partial(table.fetch, number))

    def close(self) -> None:
        self._at_hand.close()


class InMemory(Source):
    """A file that was read into memory."""

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
        return _sliced(self._batches[number].select(columns), rows)

    def close(self) -> None:
        self._batches = []


class Partitioned(Source):
    """The row groups of a file, with the partition columns of its path added."""

    def __init__(self, inner: Source, file: Table, constants: Constants) -> None:
        self._inner = inner
        self._of_file = file.schema
        self._constants = constants
        self.has_groups = inner.has_groups

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

    def possible(self, wanted: Filter, constants: Constants | None = None) -> set[int] | None:
        return self._inner.possible(wanted, self._constants)

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


def sources(tables: Tables, memory: int, pool: DaemonPool, wanted: Filter | None) -> list[Source]:
    """Returns a source of row groups for each table. Files without row groups go into memory.

    Args:
        tables: The opened files.
        memory: The bytes that files without row groups may take. Row groups that are fetched ahead
            may take half as much in addition.
        pool: The threads that open sources and read files without row groups.
        wanted: The filter on rows; None for all rows.

    Raises:
        SchemaError: If files without row groups need more memory.
        ShardCorrupt: If a file is damaged.
    """
    room = _Room(memory)
    at_hand = AtHand(memory // 2)
    columns = [*tables.conversion.reads, *(() if wanted is None else wanted.columns)]

    def of_file(table: Table) -> Source:
        if isinstance(table, Source):
            return table
        if isinstance(table, ParquetTable):
            return ParquetGroups(table, at_hand)
        if isinstance(table, ArrowTable) and table.has_batches:
            return ArrowGroups(table, at_hand)
        return InMemory(room.read(table, tables, _own(columns, table)))

    def source(table: Table) -> Source:
        file, constants = unwrapped(table)
        if constants is None:
            return of_file(file)
        if wanted is not None and not wanted.among([constants], table.schema):
            return InMemory([])  # no row can match
        return Partitioned(of_file(file), file, constants)

    return list(pool.map(source, tables.tables))


def _own(columns: Sequence[str], table: Table) -> list[str]:
    """Returns those columns that the file has; at least one, because it counts the rows."""
    return [n for n in dict.fromkeys(columns) if n in table.schema.names] or table.schema.names[:1]


class _Room:
    """The memory that files without row groups may still take. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._left = nbytes

    def read(self, table: Table, tables: Tables, columns: list[str]) -> list[pa.RecordBatch]:
        """Reads all rows of a table into memory, or raises SchemaError if there is too little."""
        types = {name: tables.types.get(name, table.schema.field(name).type) for name in columns}
        found = []
        for _, batch in table.batches(columns, types, 0, 1 << 16):
            with self._lock:
                self._left -= batch.nbytes
                full = self._left < 0
            if full:
                raise SchemaError(
                    f"{table.name} needs more than {self._nbytes / 2**20:,.0f} MiB, half of "
                    "memory=: files of this kind cannot be read in parts. Increase memory=, "
                    "or pack the file (fastio pack)"
                )
            found.append(batch)
        return found
