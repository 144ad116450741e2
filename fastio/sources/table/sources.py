"""Chooses how the row groups of each file are read. Files without row groups go into memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from fastio.errors import SchemaError
from fastio.runtime.threads import DaemonPool
from fastio.sources.table.binary_files import ArrowTable, ParquetTable
from fastio.sources.table.filters import Filter
from fastio.sources.table.reading import Table
from fastio.sources.table.row_groups import (
    ArrowGroups,
    AtHand,
    InMemory,
    Nothing,
    ParquetGroups,
    Partitioned,
    Source,
)
from fastio.sources.table.tables import Tables
from fastio.sources.table.wrapped import unwrapped


def sources(tables: Tables, memory: int, pool: DaemonPool, wanted: Filter | None) -> list[Source]:
    """Returns a source of row groups for each table.

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
        if isinstance(table, ParquetTable):
            return ParquetGroups(table, at_hand)
        if isinstance(table, ArrowTable) and table.has_batches:
            return ArrowGroups(table, at_hand)
        batches = room.read(table, tables, _own(columns, table))
        return InMemory(batches, table.mapped if isinstance(table, ArrowTable) else None)

    def source(table: Table) -> Source:
        file, constants = unwrapped(table)
        if constants is None:
            return of_file(file)
        if wanted is not None and not wanted.among([constants], table.schema):
            return Nothing()
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
        """Reads all rows of a table into memory.

        Raises:
            SchemaError: If they need more memory than is left.
        """
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
