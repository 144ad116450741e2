"""Reads tables in place: row groups in any order, by any thread.

Parquet and Arrow files have row groups that can be read separately. CSV, JSONL and Arrow streams
have none: they are read into memory once, if they fit.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, ShardCorrupt
from fastio.runtime.properties import cached_property
from fastio.runtime.threads import DaemonPool
from fastio.schema import Field, fixed_shape
from fastio.sources.table.arrow import ArrowTable
from fastio.sources.table.columns import Part
from fastio.sources.table.embedded import (
    EncodedImages,
    EncodedLists,
    encoded_images,
    encoded_lists,
    files_without_bytes,
    without_nulls,
)
from fastio.sources.table.features import features_of, sampling_rates
from fastio.sources.table.filters import Filter, PartitionedTable, unwrapped
from fastio.sources.table.leaves import field_name, is_list
from fastio.sources.table.objects import TableFile, stamp
from fastio.sources.table.opening import Opened, open_all
from fastio.sources.table.options import TableOptions, narrowed, selected
from fastio.sources.table.parquet import ParquetTable
from fastio.sources.table.reading import (
    AtHand,
    Batches,
    Grouped,
    Origin,
    Table,
    reading,
    sliced,
)
from fastio.sources.table.tables import Tables
from fastio.sources.table.values import Ragged


@dataclass(frozen=True)
class RowGroup:
    """Rows that are read together.

    Attributes:
        file: The number of the file.
        number: The number of the row group in its file.
        first_row: The number of its first row in all files together, counting matching rows.
        rows: The number of rows that match the filter.
        origin: The origin of its first row.
        varying_bytes: The approximate size of its strings, byte strings and lists.
    """

    file: int
    number: int
    first_row: int
    rows: int
    origin: Origin
    varying_bytes: int


@dataclass(frozen=True)
class DecodedRows:
    """Consecutive rows of a row group.

    Attributes:
        begin, count: The number of the first row in the row group, and the number of rows.
        parts: The values of fixed-width fields.
        ragged: The other fields.
    """

    begin: int
    count: int
    parts: Sequence[Part]
    ragged: dict[str, Ragged]


class TableDataset:
    """Table files as row groups of fields.

    Args:
        files: The files, all of one kind, see `find_tables`; or opened tables, with their filter.
        options: Which columns are read, as which fields.
        fields: The names of the fields that are read, in this order. If None, all.
        filters: The filter on rows. If None, all rows.
        memory: The bytes that files without row groups may take. Row groups that are fetched ahead
            may take half as much in addition.
        threads: The number of threads that open files.
        like: A dataset of the same files and filter, whose files are used and whose matching rows
            are not counted again.
        embedded: The columns that hold files, with their fields; see `embedded_files`.

    Attributes:
        path: The path of the first file.
        schema: The schema of the fields.
        groups: The row groups, in the order of the files.
        fingerprint: 16 hexadecimal digits that identify the files' contents and the filter.

    Raises:
        SourceNotFound, ShardCorrupt: If a file cannot be read.
        SchemaError: If a column cannot be a field, or if a file needs more memory.
    """

    def __init__(
        self,
        files: Sequence[TableFile | str] | Opened,
        options: TableOptions,
        *,
        fields: Sequence[str] | None = None,
        filters: Any = None,
        memory: int,
        threads: int,
        like: TableDataset | None = None,
        embedded: Mapping[str, Field] | None = None,
    ) -> None:
        if isinstance(files, Opened):
            opened = files
        else:
            opened = open_all(files, filters, threads=threads) if like is None else like._opened
        self._opened: Opened = opened
        self._names = [table.name for table in opened.tables]
        self.path = self._names[0]
        self._filter = opened.wanted
        self._embedded: Mapping[str, Field] = embedded or {}
        self._filled = frozenset(options.nulls)
        if self._filter is not None:
            for table in opened.tables:
                self._filter.check(table.schema, table.name)
        about = f"{opened.stamp or stamp(opened.files)} {self._filter}"
        self.fingerprint = xxhash.xxh3_64_hexdigest(about.encode("utf-8", "surrogateescape"))
        # Words are found by reading all dictionaries, so only those of the wanted fields are read.
        tables = Tables(opened.tables, options, find_words=fields is None, embedded=embedded)
        if fields is not None:
            narrow = narrowed(options, tables.schema, fields)
            tables = Tables(opened.tables, narrow, embedded=embedded)
        self._conversion = tables.conversion
        self.schema = selected(tables.schema, fields)
        self._at_hand = AtHand(memory // 2)
        find = partial(_grouped, tables=tables, wanted=self._filter, room=_Room(memory))
        with DaemonPool(threads, "fastio-table-groups") as pool:
            self._tables: list[Grouped] = list(pool.map(find, tables.tables))
            self.groups = self._find_groups(pool, None if like is None else like._counts)

    def __len__(self) -> int:
        """Returns the number of rows that match the filter."""
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

    @property
    def sampling_rates(self) -> dict[str, int]:
        """The sampling rates in Hz of fields of sound, as the first file tells them."""
        return sampling_rates(features_of(unwrapped(self._opened.tables[0])[0].schema))

    @property
    def file_bounds(self) -> NDArray[np.int64]:
        """The first row of each file, and the number of rows: int64 (files + 1,)."""
        rows = np.zeros(len(self._names) + 1, np.int64)
        for group in self.groups:
            rows[group.file + 1] += group.rows
        return np.cumsum(rows)

    @property
    def row_bytes(self) -> int:
        """The size of a row's fixed-width fields in bytes."""
        return sum(width for _, width in self.fixed.values())

    @cached_property
    def fixed(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The shape and size in bytes of a row of each fixed-width field."""
        return {
            name: (shape, prod(shape) * np.dtype(kind.dtype).itemsize)  # type: ignore[union-attr]
            for name, kind in self.schema.fields.items()
            if (shape := fixed_shape(kind)) is not None
        }

    def read(
        self,
        group: RowGroup,
        rows: int | None,
        threads: bool,
        lacking: dict[str, dict[int, str]] | None = None,
    ) -> Iterator[DecodedRows]:
        """Yields the rows of a row group in order. Thread-safe.

        Args:
            group: One of `groups`.
            rows: The largest number of rows at a time. If None, the fastest size is chosen.
            threads: Whether pyarrow may use several threads.
            lacking: Gets, for each field of files, the rows of the row group that have no bytes,
                and what is wrong with each. If None, such a row is an error.

        Raises:
            ShardCorrupt: If it is damaged, or has changed since it was opened.
            SchemaError: If a value does not fit its field.
        """
        origin, done, batch = group.origin, 0, None
        where = _where(group)
        # The rows are counted, because a file that was replaced may have fewer or more of them.
        batches = self._batches(group, rows, threads, self._columns())
        while True:
            with reading(where):
                at, batch = next(batches, (origin, None))
            if batch is None or done + batch.num_rows > group.rows:
                break
            problems = list(files_without_bytes(batch, self._embedded, self._filled))
            for name, row, problem in problems:
                if lacking is None:
                    raise SchemaError(f"{at.file}, row {at.row(row)}: {problem}")
                lacking.setdefault(field_name([name]), {})[done + row] = problem
            for name in {name for name, _, _ in problems}:
                batch = without_nulls(batch, name)
            parts, ragged = self._conversion.parts(batch, at)
            if self._tables[group.file].lends:  # the file is checked when all was read
                ragged = {name: each.copied() for name, each in ragged.items()}
            yield DecodedRows(done, batch.num_rows, parts, ragged)
            done += batch.num_rows
        if done != group.rows or batch is not None:
            raise _changed(group)

    def images(self, group: RowGroup) -> dict[str, list[EncodedImages | EncodedLists]]:
        """Reads the encoded images of a row group, by field, in parts. Thread-safe.

        Those of a field of lists are `EncodedLists`.

        Raises:
            ShardCorrupt: If it is damaged, or has changed since it was opened.
        """
        pictures = self._conversion.pictures
        found: dict[str, list[EncodedImages | EncodedLists]] = {name: [] for name in pictures}
        columns = self._with_filter([leaf.path[0] for leaf in pictures.values()])
        done, where = 0, _where(group)
        with reading(where):
            for _, batch in self._batches(group, None, False, columns):
                done += batch.num_rows
                for name, leaf in pictures.items():
                    column = batch.column(leaf.path[0])
                    encoded = encoded_lists if is_list(leaf.type) else encoded_images
                    found[name].append(encoded(column, f"{where}, column {leaf.spoken!r}"))
        if done != group.rows:
            raise _changed(group)
        return found

    def ahead(self, group: RowGroup) -> bool:
        """Starts to fetch a row group from a store; returns False if there is no memory for it now.

        The row group must be read later, or it takes memory until `close`.
        """
        return self._tables[group.file].ahead(group.number, self._columns(), self._at_hand)

    def close(self) -> None:
        """Closes the files of threads that ended, and releases memory."""
        self._at_hand.close()

    def _batches(
        self, group: RowGroup, rows: int | None, threads: bool, columns: Sequence[str]
    ) -> Batches:
        """Yields the matching rows of a row group."""
        origin, wanted, first = group.origin, self._filter, group.origin.first_row
        table = self._tables[group.file]
        for batch in table.read(group.number, columns, rows, threads, self._at_hand):
            at = Origin(origin.file, first, origin.row_group)
            first += batch.num_rows
            if wanted is not None:
                at, batch = wanted.matching(at, batch)
            if batch.num_rows:
                yield at, batch

    def _columns(self) -> list[str]:
        """Returns the names of the columns to read."""
        return self._with_filter(self._conversion.reads)

    def _with_filter(self, columns: list[str]) -> list[str]:
        """Returns the names of columns, and of those that the filter uses."""
        wanted = self._filter
        return columns if wanted is None else [*dict.fromkeys([*columns, *wanted.columns])]

    def _find_groups(self, pool: DaemonPool, kept: list[int] | None) -> list[RowGroup]:
        varying = self._conversion.varying()
        counted = list(pool.map(lambda table: table.groups(varying), self._tables))
        self._counts: list[int] = list(self._count(counted, pool)) if kept is None else kept
        matches = iter(self._counts)
        found: list[RowGroup] = []
        first = 0
        for file, groups in enumerate(counted):
            in_file = 0
            for number, (rows, nbytes) in enumerate(groups):
                # Row groups without matching rows are left out, but count for the positions of rows
                # in the file.
                match = next(matches)
                has_groups = self._tables[file].has_groups
                origin = Origin(self._names[file], in_file, number if has_groups else None)
                if match:
                    share = nbytes * match // rows
                    found.append(RowGroup(file, number, first, match, origin, share))
                in_file += rows
                first += match
        return found

    def _count(self, counted: list[list[tuple[int, int]]], pool: DaemonPool) -> Iterator[int]:
        """Yields the number of matching rows of each row group."""
        wanted = self._filter
        if wanted is None:
            return (rows for groups in counted for rows, _ in groups)

        def possible(file: int) -> Collection[int]:
            inner, _ = unwrapped(self._tables[file])
            is_parquet = isinstance(inner, ParquetTable)
            return wanted.possible(self._tables[file]) if is_parquet else range(len(counted[file]))

        jobs = [
            (file, number, number in found)
            for file, found in enumerate(pool.map(possible, range(len(counted))))
            for number in range(len(counted[file]))
        ]
        return pool.map(lambda job: self._matching(wanted, *job), jobs)

    def _matching(self, wanted: Filter, file: int, number: int, possible: bool) -> int:
        """Returns the number of matching rows of a row group, if it may have any."""
        if not possible:
            return 0
        with reading(f"{self._names[file]}, row group {number}"):
            columns, at_hand = list(wanted.columns), self._at_hand
            batches = self._tables[file].read(number, columns, None, False, at_hand)
            return sum(wanted.of_batch(batch).num_rows for batch in batches)


def _where(group: RowGroup) -> str:
    """Returns the file and row group, as messages begin."""
    origin = group.origin
    return origin.file if origin.row_group is None else f"{origin.file}, row group {group.number}"


def _changed(group: RowGroup) -> ShardCorrupt:
    return ShardCorrupt(
        f"{_where(group)} no longer has the {group.rows} rows that it had when it was opened: "
        "the file was changed. Open the table again"
    )


class _InMemory(Grouped):
    """A file that was read into memory."""

    has_groups = False

    def __init__(self, name: str, batches: list[pa.RecordBatch]) -> None:
        self.name = name
        self.rows = sum(batch.num_rows for batch in batches)
        self.schema = batches[0].schema if batches else pa.schema([])
        self._batches = batches

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Grouped`."""
        return [
            (batch.num_rows, batch.select(list(varying)).nbytes if varying else 0)
            for batch in self._batches
        ]

    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """See `Grouped`."""
        return sliced(self._batches[number].select(list(columns)), rows)


def _grouped(table: Table, tables: Tables, wanted: Filter | None, room: _Room) -> Grouped:
    """Returns a table with row groups. Files without them go into memory.

    Args:
        table: The table.
        tables: All tables.
        wanted: The filter on rows; None for all rows.
        room: The memory for files without row groups.

    Raises:
        SchemaError: If files without row groups need more memory.
        ShardCorrupt: If a file is damaged.
    """
    file, constants = unwrapped(table)
    if constants is not None and wanted is not None and not wanted.among([constants], table.schema):
        return _InMemory(table.name, [])  # no row can match
    if (isinstance(file, ArrowTable) and not file.has_batches) or not isinstance(file, Grouped):
        pictures = [leaf.path[0] for leaf in tables.conversion.pictures.values()]
        filtered = () if wanted is None else wanted.columns
        columns = [*tables.conversion.reads, *pictures, *filtered]
        file = _InMemory(file.name, room.read(file, tables, _own(columns, file)))
    assert isinstance(file, Grouped)
    return file if constants is None else PartitionedTable(file, constants)


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
        # The memory of each batch is counted before the next one is read, so that several files
        # that are read at once do not exceed the limit together.
        types = {name: tables.types.get(name, table.schema.field(name).type) for name in columns}
        found = []
        for _, batch in table.batches(types, 0, 1 << 16):
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
