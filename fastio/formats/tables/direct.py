"""Tables that are read where they lie: row groups in any order, by any thread.

Parquet files and Arrow files have groups of rows that can be read by themselves. CSV, JSONL and
Arrow streams have not: they are read into memory once, where they fit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import xxhash

from fastio.errors import SchemaError, ShardCorrupt
from fastio.formats.tables.columns import Part
from fastio.formats.tables.filters import Filter
from fastio.formats.tables.options import VALID_SUFFIX, TableOptions
from fastio.formats.tables.place import Place
from fastio.formats.tables.readers import ArrowTable, ParquetTable, Table, open_table, reading
from fastio.formats.tables.tables import Tables, stamp
from fastio.formats.tables.values import Ragged
from fastio.schema import Array, Scalar, Schema, is_fixed_width

_OPEN_FILES = 4  # of each thread
_READ_BYTES = 1 << 20  # of a column that is read in slices


@dataclass(frozen=True)
class RowGroup:
    """Rows that are read at once.

    Attributes:
        file: number of the file.
        number: in its file.
        first_row: number of its first row in all files together, filtered ones not counted.
        rows: that pass the filter.
        place: of its first row.
        varying_bytes: about what its strings, byte strings and lists take.
    """

    file: int
    number: int
    first_row: int
    rows: int
    place: Place
    varying_bytes: int


@dataclass(frozen=True)
class Rows:
    """Rows as they were read.

    Attributes:
        begin: number of the first in its row group.
        count: how many.
        parts: of the fields of fixed width.
        ragged: the other fields.
    """

    begin: int
    count: int
    parts: Sequence[Part]
    ragged: dict[str, Ragged]


class _Source(Protocol):
    """The row groups of one file."""

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """Rows, and about the bytes of columns of varying width, of each."""
        ...

    def read(self, number: int, columns: list[str], rows: int | None, threads: bool) -> Any:
        """The record batches of one, of at most `rows` rows; None: as it is fastest."""
        ...


class TableDataset:
    """Table files as rows of fields, unconverted.

    Args:
        paths: the files, all of one kind.
        options: what is wanted of them.
        fields: names of the fields that are wanted, in this order; None for all.
        filters: rows that are wanted; None for all.
        memory: bytes that files without row groups may take.
        threads: for opening.

    Attributes:
        path: the first file's.
        schema: of the fields.
        groups: the row groups, files in order.
        fingerprint: stands for the files, as they were when they were opened, and the filter.

    Raises:
        SourceNotFound, ShardCorrupt: a file cannot be read.
        SchemaError: a column cannot be a field, or a file needs more memory.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: TableOptions,
        *,
        fields: Sequence[str] | None = None,
        filters: Any = None,
        memory: int,
        threads: int,
    ) -> None:
        self.path = paths[0]
        stamped = stamp(paths)
        self._paths = list(paths)
        with ThreadPoolExecutor(threads) as pool:
            opened = list(pool.map(open_table, paths))
            self._filter = Filter.of(filters, opened[0].schema, self.path)
            self.fingerprint = xxhash.xxh3_64_hexdigest(f"{stamped} {self._filter}".encode())
            tables = Tables(opened, options)
            if fields is not None:
                tables = Tables(opened, _narrowed(options, tables.schema, fields))
            self._conversion = tables.conversion
            self.schema = _selected(tables.schema, fields)
            self._sources = _sources(tables, memory, pool, self._filter)
            self.groups = self._find_groups(pool)

    def __len__(self) -> int:
        """Rows that pass the filter."""
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's fields of fixed width."""
        return sum(width for _, width in self.fixed.values())

    @cached_property
    def fixed(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The fields of fixed width: shape, and bytes, of a row."""
        found = {}
        for name, kind in self.schema.fields.items():
            shape = kind.fixed_shape if isinstance(kind, Array) else ()
            if isinstance(kind, (Scalar, Array)) and shape is not None:
                found[name] = (
                    shape,
                    int(np.prod(shape, dtype=np.int64)) * np.dtype(kind.dtype).itemsize,
                )
        return found

    def read(self, group: RowGroup, rows: int | None, threads: bool) -> Iterator[Rows]:
        """The rows of a row group, in order. Thread-safe.

        Args:
            group: one of `groups`.
            rows: at most so many at a time; None: all, or as many as is fastest.
            threads: let pyarrow use several threads.

        Raises:
            ShardCorrupt: it is damaged, or not what it was when it was opened.
            SchemaError: a value does not fit its field.
        """
        place, done = group.place, 0
        where = place.file if place.row_group is None else f"{place.file}, row group {group.number}"
        batches = self._batches(group, rows, threads)
        while True:
            with reading(where):
                batch = next(batches, None)
            if batch is None:
                break
            at = Place(place.file, place.first_row + done, place.row_group)
            parts, ragged = self._conversion.parts(batch, at)
            if done + batch.num_rows > group.rows:
                break
            yield Rows(done, batch.num_rows, parts, ragged)
            done += batch.num_rows
        if done != group.rows or batch is not None:
            raise ShardCorrupt(
                f"{where} has not the {group.rows} rows that it had when it was opened: it has "
                "changed meanwhile"
            )

    def close(self) -> None:
        """Lets go of the files that this thread has open, and of what is in memory."""
        for source in self._sources:
            if isinstance(source, _Memory):
                source.close()

    def _batches(
        self, group: RowGroup, rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        source, reads = self._sources[group.file], self._conversion.reads
        wanted = self._filter
        columns = reads if wanted is None else [*dict.fromkeys([*reads, *wanted.columns])]
        for batch in source.read(group.number, columns, rows, threads):
            if wanted is not None:
                batch = wanted.of_batch(batch)
            if batch.num_rows:
                yield batch

    def _find_groups(self, pool: ThreadPoolExecutor) -> list[RowGroup]:
        kinds = self._conversion.schema().fields
        sources = self._conversion.sources()
        varying = sorted({column for field, column in sources if _varies(kinds[field])})
        counted = [source.groups(varying) for source in self._sources]
        kept = self._count(counted, pool)
        found: list[RowGroup] = []
        first = 0
        for file, groups in enumerate(counted):
            in_file = 0
            for number, (rows, nbytes) in enumerate(groups):
                match = next(kept)
                has_groups = not isinstance(self._sources[file], _Memory)
                place = Place(self._paths[file], in_file, number if has_groups else None)
                if match:
                    share = nbytes * match // rows
                    found.append(RowGroup(file, number, first, match, place, share))
                in_file += rows
                first += match
        return found

    def _count(
        self, counted: list[list[tuple[int, int]]], pool: ThreadPoolExecutor
    ) -> Iterator[int]:
        """For each row group, how many of its rows pass the filter."""
        wanted = self._filter
        if wanted is None:
            return (rows for groups in counted for rows, _ in groups)
        jobs: list[Callable[[], int]] = []
        for file, groups in enumerate(counted):
            source = self._sources[file]
            possible = set(range(len(groups)))
            if isinstance(source, _Parquet):
                possible = wanted.possible(source.path)
            for number in range(len(groups)):
                name = f"{self._paths[file]}, row group {number}"
                jobs.append(_counting(wanted, source, number, name, number not in possible))
        return pool.map(lambda job: job(), jobs)


def _counting(
    wanted: Filter, source: _Source, number: int, name: str, skipped: bool
) -> Callable[[], int]:
    def count() -> int:
        if skipped:
            return 0
        with reading(name):
            batches = source.read(number, list(wanted.columns), None, False)
            return sum(wanted.of_batch(batch).num_rows for batch in batches)

    return count


class _Opened(threading.local):
    """The files that a thread has open, the one used last at the end."""

    def __init__(self) -> None:
        self.files: OrderedDict[str, Any] = OrderedDict()

    def __reduce__(self) -> Any:
        return _Opened, ()  # another process opens its own

    def get(self, path: str, opener: Callable[[], Any]) -> Any:
        """A file, opened if need be; the one not used for the longest time is closed."""
        file = self.files.pop(path, None)
        if file is None:
            file = opener()
        self.files[path] = file
        if len(self.files) > _OPEN_FILES:
            self.files.popitem(last=False)
        return file


class _Parquet:
    """A Parquet file's row groups."""

    def __init__(self, table: ParquetTable, opened: _Opened) -> None:
        self.path = table.name
        self.metadata = table.metadata
        self._opened = opened

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        metadata = self.metadata
        columns = metadata.row_group(0).num_columns if metadata.num_row_groups else 0
        wide = [
            column
            for column in range(columns)
            if varying
            and metadata.row_group(0).column(column).path_in_schema.split(".")[0] in varying
        ]
        found = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            nbytes = sum(group.column(column).total_uncompressed_size for column in wide)
            found.append((group.num_rows, nbytes))
        return found

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        if rows is None:
            file = self._opened.get(self.path, self._open)
            yield from file.read_row_group(
                number, columns=columns, use_threads=threads
            ).to_batches()
        else:
            with pa_parquet.ParquetFile(
                self.path, metadata=self.metadata, buffer_size=_READ_BYTES
            ) as file:
                yield from file.iter_batches(
                    rows, row_groups=[number], columns=columns, use_threads=threads
                )

    def _open(self) -> pa_parquet.ParquetFile:
        return pa_parquet.ParquetFile(
            self.path, metadata=self.metadata, buffer_size=_READ_BYTES, pre_buffer=False
        )


class _Arrow:
    """An Arrow file's record batches, mapped."""

    def __init__(self, table: ArrowTable, opened: _Opened) -> None:
        self._path = table.name
        self._counts = table.batch_rows
        self._opened = opened

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        file = self._opened.get(self._path, self._open)
        found = []
        for number, rows in enumerate(self._counts):
            nbytes = 0
            if varying and rows:
                nbytes = file.get_batch(number).select(list(varying)).nbytes
            found.append((rows, nbytes))
        return found

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        file = self._opened.get(self._path, self._open)
        yield from _sliced(file.get_batch(number).select(columns), rows)

    def _open(self) -> Any:
        return pa.ipc.open_file(pa.memory_map(self._path))


class _Memory:
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
        yield from _sliced(self._batches[number].select(columns), rows)

    def close(self) -> None:
        self._batches = []


def _sliced(batch: pa.RecordBatch, rows: int | None) -> Iterator[pa.RecordBatch]:
    step = rows or max(batch.num_rows, 1)
    return (batch.slice(begin, step) for begin in range(0, batch.num_rows, step))


def _sources(
    tables: Tables, memory: int, pool: ThreadPoolExecutor, wanted: Filter | None
) -> list[_Source]:
    opened = _Opened()
    room = _Room(memory)

    def source(table: Table) -> _Source:
        if isinstance(table, ParquetTable):
            return _Parquet(table, opened)
        if isinstance(table, ArrowTable) and table.rows is not None:
            return _Arrow(table, opened)
        columns = tables.conversion.reads
        if wanted is not None:
            columns = [*dict.fromkeys([*columns, *wanted.columns])]
        return _Memory(room.read(table, tables, columns))

    return list(pool.map(source, tables.tables))


class _Room:
    """How much memory files may still take."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._left = nbytes

    def read(self, table: Table, tables: Tables, columns: list[str]) -> list[pa.RecordBatch]:
        """All rows of a table.

        Raises:
            SchemaError: there is no room.
        """
        types = {name: tables.types.get(name, table.schema.field(name).type) for name in columns}
        found = []
        for _, batch in table.batches(columns, types, 0, 1 << 16):
            with self._lock:
                self._left -= batch.nbytes
                full = self._left < 0
            if full:
                raise SchemaError(
                    f"{table.name} takes more than the {self._nbytes / 2**20:,.0f} MiB that there "
                    "are for it (half of memory=): files of its kind have no groups of rows that "
                    "can be read by themselves. Give more memory, or pack it (fastio pack)"
                )
            found.append(batch)
        return found


def _selected(schema: Schema, fields: Sequence[str] | None) -> Schema:
    """The schema of some fields, in their order."""
    if fields is None:
        return schema
    kept = {name: schema.fields[name] for name in fields}
    words = {name: schema.vocabularies[name] for name in fields if name in schema.vocabularies}
    return Schema(kept, "dict", None, True, words)


def _narrowed(options: TableOptions, schema: Schema, fields: Sequence[str]) -> TableOptions:
    """The options with what only these fields need.

    Raises:
        SchemaError: there is no such field.
    """
    needed: list[str] = []
    for name in fields:
        if name not in schema.fields:
            raise SchemaError(f"there is no field {name!r}; there are {', '.join(schema.fields)}")
        source = name.removesuffix(VALID_SUFFIX)
        needed.append(source if name not in options.groups and source in schema.fields else name)
    columns = tuple(dict.fromkeys(needed))
    groups = {name: members for name, members in options.groups.items() if name in columns}
    kept = {*columns, *(member for members in groups.values() for member in members)}

    def of_kept(given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in given.items() if k in kept or k.replace(".", "_") in kept}

    return TableOptions(columns, groups, of_kept(options.dtypes), of_kept(options.nulls))


def _varies(kind: Any) -> bool:
    """Whether a field's rows differ in their bytes."""
    return not is_fixed_width(kind)
