"""Tables that are read where they lie: row groups in any order, by any thread.

Parquet files and Arrow files have groups of rows that can be read by themselves. CSV, JSONL and
Arrow streams have not: they are read into memory once, where they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from fastio.errors import ShardCorrupt
from fastio.formats.tables.columns import Part
from fastio.formats.tables.filters import Filter
from fastio.formats.tables.narrowing import narrowed, selected
from fastio.formats.tables.objects import TableFile, stamp
from fastio.formats.tables.opening import Opened, open_all
from fastio.formats.tables.options import TableOptions
from fastio.formats.tables.place import Place
from fastio.formats.tables.readers import reading
from fastio.formats.tables.row_groups import Source
from fastio.formats.tables.sources import sources
from fastio.formats.tables.tables import Tables
from fastio.formats.tables.values import Ragged
from fastio.schema import Array, Scalar, is_fixed_width
from fastio.threads import DaemonPool


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


class TableDataset:
    """Table files as rows of fields, unconverted.

    Args:
        files: all of one kind, here or in stores; see `find_tables`.
        options: what is wanted of them.
        fields: names of the fields that are wanted, in this order; None for all.
        filters: rows that are wanted; None for all.
        memory: bytes that files without row groups may take; and row groups of files in stores,
            before they are read, half of it.
        threads: for opening.
        like: the same files and filter, opened before: they are not opened and counted again.

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
        files: Sequence[TableFile | str],
        options: TableOptions,
        *,
        fields: Sequence[str] | None = None,
        filters: Any = None,
        memory: int,
        threads: int,
        like: TableDataset | None = None,
    ) -> None:
        opened = open_all(files, filters, threads=threads) if like is None else like._opened
        self._opened: Opened = opened
        self._names = [file.name for file in opened.files]
        self.path = self._names[0]
        self._filter = opened.wanted
        if self._filter is not None:
            for table in opened.tables:
                self._filter.check(table.schema, table.name)
        stamped = stamp(opened.files)
        self.fingerprint = xxhash.xxh3_64_hexdigest(f"{stamped} {self._filter}".encode())
        tables = Tables(opened.tables, options, find_words=fields is None)
        if fields is not None:
            tables = Tables(opened.tables, narrowed(options, tables.schema, fields))
        self._conversion = tables.conversion
        self.schema = selected(tables.schema, fields)
        with DaemonPool(threads, "fastio-table-groups") as pool:
            self._sources = sources(tables, memory, pool, self._filter)
            self.groups = self._find_groups(pool, None if like is None else like._counts)

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
            if self._sources[group.file].lends:  # strings are used long after they were checked
                ragged = {name: each.copied() for name, each in ragged.items()}
            if done + batch.num_rows > group.rows:
                break
            yield Rows(done, batch.num_rows, parts, ragged)
            done += batch.num_rows
        if done != group.rows or batch is not None:
            raise ShardCorrupt(
                f"{where} has not the {group.rows} rows that it had when it was opened: it has "
                "changed meanwhile"
            )

    def ahead(self, group: RowGroup) -> bool:
        """Begins to fetch a row group that is read soon, where its file is in a store.

        Args:
            group: one of `groups`; to be read afterwards, or it takes room until `close`.

        Returns:
            False: there is no room for it now.
        """
        return self._sources[group.file].ahead(group.number, self._columns())

    def close(self) -> None:
        """Lets go of the files that this thread has open, and of what is in memory."""
        for source in self._sources:
            source.close()

    def _batches(
        self, group: RowGroup, rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        wanted = self._filter
        source = self._sources[group.file]
        for batch in source.read(group.number, self._columns(), rows, threads):
            if wanted is not None:
                batch = wanted.of_batch(batch)
            if batch.num_rows:
                yield batch

    def _columns(self) -> list[str]:
        """The columns that are read."""
        reads, wanted = self._conversion.reads, self._filter
        return reads if wanted is None else [*dict.fromkeys([*reads, *wanted.columns])]

    def _find_groups(self, pool: DaemonPool, kept: list[int] | None) -> list[RowGroup]:
        kinds = self._conversion.schema().fields
        sources = self._conversion.sources()
        varying = sorted({column for field, column in sources if _varies(kinds[field])})
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
        """For each row group, how many of its rows pass the filter."""
        wanted = self._filter
        if wanted is None:
            return (rows for groups in counted for rows, _ in groups)
        jobs: list[Callable[[], int]] = []
        every = pool.map(lambda source: source.possible(wanted), self._sources)
        for file, (groups, possible) in enumerate(zip(counted, every, strict=True)):
            source = self._sources[file]
            for number in range(len(groups)):
                name = f"{self._names[file]}, row group {number}"
                skipped = possible is not None and number not in possible
                jobs.append(_counting(wanted, source, number, name, skipped))
        return pool.map(lambda job: job(), jobs)


def _counting(
    wanted: Filter, source: Source, number: int, name: str, skipped: bool
) -> Callable[[], int]:
    def count() -> int:
        if skipped:
            return 0
        with reading(name):
            batches = source.read(number, list(wanted.columns), None, False)
            return sum(wanted.of_batch(batch).num_rows for batch in batches)

    return count


def _varies(kind: Any) -> bool:
    """Whether a field's rows differ in their bytes."""
    return not is_fixed_width(kind)
