"""Reads tables in place: row groups in any order, by any thread.

Parquet and Arrow files have row groups that can be read separately. CSV, JSONL and Arrow streams
have none: they are read into memory once, if they fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import xxhash

from fastio.errors import ShardCorrupt
from fastio.runtime.threads import DaemonPool
from fastio.schema import fixed_shape
from fastio.sources.table.columns import Part
from fastio.sources.table.filters import Filter
from fastio.sources.table.objects import TableFile, stamp
from fastio.sources.table.opening import Opened, open_all
from fastio.sources.table.options import TableOptions, narrowed, selected
from fastio.sources.table.reading import Batches, Place, reading
from fastio.sources.table.row_groups import sources
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
        place: The origin of its first row.
        varying_bytes: The approximate size of its strings, byte strings and lists.
    """

    file: int
    number: int
    first_row: int
    rows: int
    place: Place
    varying_bytes: int


@dataclass(frozen=True)
class Rows:
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
    ) -> None:
        if isinstance(files, Opened):
            opened = files
        else:
            opened = open_all(files, filters, threads=threads) if like is None else like._opened
        self._opened: Opened = opened
        self._names = [table.name for table in opened.tables]
        self.path = self._names[0]
        self._filter = opened.wanted
        if self._filter is not None:
            for table in opened.tables:
                self._filter.check(table.schema, table.name)
        about = f"{opened.stamp or stamp(opened.files)} {self._filter}"
        self.fingerprint = xxhash.xxh3_64_hexdigest(about.encode("utf-8", "surrogateescape"))
        tables = Tables(opened.tables, options, find_words=fields is None)
        if fields is not None:
            tables = Tables(opened.tables, narrowed(options, tables.schema, fields))
        self._conversion = tables.conversion
        self.schema = selected(tables.schema, fields)
        with DaemonPool(threads, "fastio-table-groups") as pool:
            self._sources = sources(tables, memory, pool, self._filter)
            self.groups = self._find_groups(pool, None if like is None else like._counts)

    def __len__(self) -> int:
        """Returns the number of rows that match the filter."""
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

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

    def read(self, group: RowGroup, rows: int | None, threads: bool) -> Iterator[Rows]:
        """Yields the rows of a row group in order. Thread-safe.

        Args:
            group: One of `groups`.
            rows: The largest number of rows at a time. If None, the fastest size is chosen.
            threads: Whether pyarrow may use several threads.

        Raises:
            ShardCorrupt: If it is damaged, or has changed since it was opened.
            SchemaError: If a value does not fit its field.
        """
        place, done, batch = group.place, 0, None
        where = place.file if place.row_group is None else f"{place.file}, row group {group.number}"
        batches = self._batches(group, rows, threads)
        while True:
            with reading(where):
                at, batch = next(batches, (place, None))
            if batch is None or done + batch.num_rows > group.rows:
                break
            parts, ragged = self._conversion.parts(batch, at)
            if self._sources[group.file].lends:  # the file is checked when all was read
                ragged = {name: each.copied() for name, each in ragged.items()}
            yield Rows(done, batch.num_rows, parts, ragged)
            done += batch.num_rows
        if done != group.rows or batch is not None:
            raise ShardCorrupt(
                f"{where} no longer has the {group.rows} rows that it had when it was opened: "
                "the file was changed"
            )

    def ahead(self, group: RowGroup) -> bool:
        """Starts to fetch a row group from a store; returns False if there is no memory for it now.

        The row group must be read later, or it takes memory until `close`.
        """
        return self._sources[group.file].ahead(group.number, self._columns())

    def close(self) -> None:
        """Closes the files that this thread has open, and releases memory."""
        for source in self._sources:
            source.close()

    def _batches(self, group: RowGroup, rows: int | None, threads: bool) -> Batches:
        """Yields the matching rows of a row group."""
        place, wanted, first = group.place, self._filter, group.place.first_row
        source = self._sources[group.file]
        for batch in source.read(group.number, self._columns(), rows, threads):
            at = Place(place.file, first, place.row_group)
            first += batch.num_rows
            if wanted is not None:
                batch, numbers = wanted.numbered(batch)
                at = replace(at, numbers=numbers + at.first_row)
            if batch.num_rows:
                yield at, batch

    def _columns(self) -> list[str]:
        """Returns the names of the columns to read."""
        reads, wanted = self._conversion.reads, self._filter
        return reads if wanted is None else [*dict.fromkeys([*reads, *wanted.columns])]

    def _find_groups(self, pool: DaemonPool, kept: list[int] | None) -> list[RowGroup]:
        varying = self._conversion.varying()
        counted = list(pool.map(lambda source: source.groups(varying), self._sources))
        self._counts: list[int] = list(self._count(counted, pool)) if kept is None else kept
        matches = iter(self._counts)
        found: list[RowGroup] = []
        first = 0
        for file, groups in enumerate(counted):
            in_file = 0
            for number, (rows, nbytes) in enumerate(groups):
                match = next(matches)
                has_groups = self._sources[file].has_groups
                place = Place(self._names[file], in_file, number if has_groups else None)
                if match:
                    share = nbytes * match // rows
                    found.append(RowGroup(file, number, first, match, place, share))
                in_file += rows
                first += match
        return found

    def _count(self, counted: list[list[tuple[int, int]]], pool: DaemonPool) -> Iterator[int]:
        """Yields the number of matching rows of each row group."""
        wanted = self._filter
        if wanted is None:
            return (rows for groups in counted for rows, _ in groups)
        every = pool.map(lambda source: source.possible(wanted), self._sources)
        jobs = [
            (file, number, possible is None or number in possible)
            for file, (groups, possible) in enumerate(zip(counted, every, strict=True))
            for number in range(len(groups))
        ]
        return pool.map(lambda job: self._matching(wanted, *job), jobs)

    def _matching(self, wanted: Filter, file: int, number: int, possible: bool) -> int:
        """Returns the number of matching rows of a row group, if it may have any."""
        if not possible:
            return 0
        with reading(f"{self._names[file]}, row group {number}"):
            batches = self._sources[file].read(number, list(wanted.columns), None, False)
            return sum(wanted.of_batch(batch).num_rows for batch in batches)
