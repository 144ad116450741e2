"""Which way the row groups of each file are read; files without any are read into memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from fastio.errors import SchemaError
from fastio.formats.tables.ahead import Ahead
from fastio.formats.tables.binary_files import ArrowTable, ParquetTable
from fastio.formats.tables.filters import Filter
from fastio.formats.tables.objects import StoreFile
from fastio.formats.tables.reading import Table
from fastio.formats.tables.row_groups import (
    InMemory,
    LocalArrow,
    LocalParquet,
    Nothing,
    OpenFiles,
    Partitioned,
    Source,
    StoredArrow,
    StoredParquet,
)
from fastio.formats.tables.tables import Tables
from fastio.formats.tables.wrapped import unwrapped
from fastio.threads import DaemonPool


def sources(tables: Tables, memory: int, pool: DaemonPool, wanted: Filter | None) -> list[Source]:
    """A source for each table.

    Args:
        tables: files, each opened.
        memory: bytes that files without row groups may take, and row groups that are fetched
            before they are read a half of it.
        pool: that reads files without row groups.
        wanted: rows that are wanted.

    Raises:
        SchemaError: such files take more memory.
        ShardCorrupt: one of them is damaged.
    """
    opened = OpenFiles()
    room = _Room(memory)
    ahead = Ahead(memory // 2)
    columns = [*tables.conversion.reads, *(() if wanted is None else wanted.columns)]

    def of_file(table: Table) -> Source:
        if isinstance(table, ParquetTable):
            if isinstance(table.file, StoreFile):
                return StoredParquet(table, ahead, opened)
            return LocalParquet(table, opened)
        if isinstance(table, ArrowTable) and table.has_batches:
            stored = isinstance(table.file, StoreFile)
            return StoredArrow(table, ahead) if stored else LocalArrow(table, opened)
        batches = room.read(table, tables, _own(columns, table))
        return InMemory(batches, table.mapped if isinstance(table, ArrowTable) else None)

    def source(table: Table) -> Source:
        file, constants = unwrapped(table)
        if constants is None:
            return of_file(file)
        if wanted is not None and not wanted.among([constants], table.schema):
            return Nothing()
        return Partitioned(of_file(file), file, table.schema, constants)

    return list(pool.map(source, tables.tables))


def _own(columns: Sequence[str], table: Table) -> list[str]:
    """The columns that a file has, at least one, which counts the rows."""
    return [n for n in dict.fromkeys(columns) if n in table.schema.names] or table.schema.names[:1]


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
