"""Files as tables: opened side by side, with their folders' columns, and the wanted rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastio.errors import ShardCorrupt
from fastio.runtime.threads import DaemonPool
from fastio.sources.table.filters import Filter
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.options import TableOptions
from fastio.sources.table.partitions import constants_of
from fastio.sources.table.readers import open_table
from fastio.sources.table.reading import Table
from fastio.sources.table.tables import Tables
from fastio.sources.table.wrapped import FilteredTable, PartitionedTable

_OPENED_AT_ONCE = 16  # of files in stores, where opening waits; of others as many as there is to do
_OPENED_HERE = 4


@dataclass(frozen=True)
class Opened:
    """Files as tables.

    Attributes:
        files: those that may have rows that are wanted.
        tables: of each of them.
        wanted: which rows, None for all.
        skipped: names of files that cannot be read, and why.
    """

    files: Sequence[TableFile]
    tables: Sequence[Table]
    wanted: Filter | None = None
    skipped: Sequence[tuple[str, str]] = field(default_factory=tuple)


def open_all(
    files: Sequence[TableFile | str],
    filters: Any = None,
    *,
    skip_damaged: bool = False,
    threads: int | None = None,
) -> Opened:
    """Files, opened side by side, with the columns that their folders are.

    Args:
        files: at least one.
        filters: as `Filter.of` takes them. Files that cannot have such rows, by what their folders
            say, are not opened, save the first.
        skip_damaged: leave out files that are empty or damaged as far as opening them tells.
        threads: that open files here.

    Raises:
        SourceNotFound, StoreError: a file cannot be read.
        ShardCorrupt: one is damaged; where such are left out: all are.
        SchemaError: two columns of one have the same name, or the filters do not fit.
    """
    found = [as_file(file) for file in files]
    constants = constants_of(found)
    remote = any(file.remote for file in found)
    skipped: list[tuple[str, str]] = []

    def opened(number: int) -> Table | ShardCorrupt:
        try:
            table = open_table(found[number])
        except ShardCorrupt as error:
            if not skip_damaged:
                raise
            return error
        known = constants[number]
        return table if known is None else PartitionedTable(table, known)

    tables: dict[int, Table] = {}

    def keep(number: int, table: Table | ShardCorrupt) -> None:
        if isinstance(table, ShardCorrupt):
            skipped.append((found[number].name, str(table)))
        else:
            tables[number] = table

    wanted = None
    numbers = list(range(len(found)))
    if filters is not None:
        # The first one that can be read says what the columns are.
        for number in numbers:
            keep(number, opened(number))
            if tables:
                break
        if tables:
            first = tables[number]
            wanted = Filter.of(filters, first.schema, first.name)
            assert wanted is not None
            kept = wanted.among(constants, first.schema)
            numbers = [each for each in kept if each > number]
            if number not in kept and numbers:
                del tables[number]
        else:
            numbers = []
    workers = max(threads or _OPENED_HERE, _OPENED_AT_ONCE if remote else 1)
    with DaemonPool(min(workers, max(len(numbers), 1)), "fastio-table-open") as pool:
        for each, table in zip(numbers, pool.map(opened, numbers), strict=True):
            keep(each, table)
    if not tables:
        raise ShardCorrupt(f"no file can be read: {skipped[0][1]}")
    order = sorted(tables)
    return Opened([found[n] for n in order], [tables[n] for n in order], wanted, skipped)


def open_files(
    files: Sequence[TableFile | str],
    options: TableOptions,
    filters: Any = None,
) -> Tables:
    """Table files, in this order; see `Tables` and `open_all`.

    Raises:
        SourceNotFound: a file cannot be read.
        SchemaError, ShardCorrupt: as `Tables`.
    """
    return joined(open_all(files, filters), options)


def joined(opened: Opened, options: TableOptions) -> Tables:
    """Opened files as one table, of the rows that are wanted; see `Tables`."""
    wanted = opened.wanted
    if wanted is None:
        return Tables(opened.tables, options)
    return Tables([FilteredTable(table, wanted) for table in opened.tables], options)
