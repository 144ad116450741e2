"""Files as tables: opened side by side, with their folders' columns, and the wanted rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastio.errors import DatasetNotFound, SchemaError, ShardCorrupt
from fastio.packed.manifest import MANIFEST_NAME, METADATA_KEY
from fastio.runtime.threads import DaemonPool
from fastio.sources.table.arrow import ArrowTable
from fastio.sources.table.features import METADATA_KEY as FEATURES_KEY
from fastio.sources.table.filters import Filter, FilteredTable, PartitionedTable, constants_of
from fastio.sources.table.lance import LanceTable
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.options import TableOptions
from fastio.sources.table.parquet import ParquetTable
from fastio.sources.table.reading import Table, reading
from fastio.sources.table.tables import Tables
from fastio.sources.table.text_files import CsvTable, JsonTable, LinesTable

_OPENED_AT_ONCE = 16  # of files in stores, where opening waits; of others as many as there is to do
_OPENED_HERE = 4


@dataclass(frozen=True)
class Opened:
    """Files as tables.

    Attributes:
        files, tables: Those that may have wanted rows.
        wanted: The filter on rows, None for all.
        skipped: The names of files that cannot be read, and why.
        stamp: Changes when the data does; None for data in memory, or if nobody asks for it.
    """

    files: Sequence[TableFile]
    tables: Sequence[Table]
    wanted: Filter | None = None
    skipped: Sequence[tuple[str, str]] = field(default_factory=tuple)
    stamp: str | None = None


def open_all(
    files: Sequence[TableFile | str],
    filters: Any = None,
    *,
    skip_damaged: bool = False,
    threads: int | None = None,
) -> Opened:
    """Opens files, several at a time, with the partition columns of their paths.

    Args:
        files: At least one.
        filters: As for `Filter.of`. Files that cannot have such rows, by their partition values,
            are not opened, except the first.
        skip_damaged: Whether to leave out files that are found to be empty or damaged.
        threads: The number of threads that open local files.

    Raises:
        SourceNotFound, StoreError: If a file cannot be read.
        ShardCorrupt: If one is damaged; with `skip_damaged`, if all are.
        SchemaError: If two columns of one have the same name, or the filters do not fit.
    """
    found = [as_file(file) for file in files]
    constants = constants_of(found)
    remote = any(file.remote for file in found)

    def opened(number: int) -> Table | ShardCorrupt:
        file = found[number]
        try:
            table, file.looked_into = file.looked_into or open_table(file), None
        except ShardCorrupt as error:
            if not skip_damaged:
                raise
            return error
        known = constants[number]
        return table if known is None else PartitionedTable(table, known)

    tables: dict[int, Table | ShardCorrupt] = {}
    wanted = None
    numbers = list(range(len(found)))
    if filters is not None:
        # The first one that can be read says what the columns are.
        first: Table | ShardCorrupt | None = None
        while numbers and (first is None or isinstance(first, ShardCorrupt)):
            number = numbers.pop(0)
            first = tables[number] = opened(number)
        if first is not None and not isinstance(first, ShardCorrupt):
            wanted = Filter.of(filters, first.schema, first.name)
            assert wanted is not None
            kept = wanted.among(constants, first.schema)
            numbers = [each for each in kept if each > number]
            if number not in kept and numbers:
                del tables[number]
    workers = max(threads or _OPENED_HERE, _OPENED_AT_ONCE if remote else 1)
    with DaemonPool(min(workers, max(len(numbers), 1)), "fastio-table-open") as pool:
        tables |= zip(numbers, pool.map(opened, numbers), strict=True)
    good = {n: each for n, each in sorted(tables.items()) if not isinstance(each, ShardCorrupt)}
    skipped = [(found[n].name, str(each)) for n, each in tables.items() if n not in good]
    if not good:
        raise ShardCorrupt(f"no file can be read: {skipped[0][1]}")
    return Opened([found[n] for n in good], list(good.values()), wanted, skipped)


def joined(opened: Opened, options: TableOptions) -> Tables:
    """Returns opened files as one table of the wanted rows; see `Tables`."""
    wanted = opened.wanted
    if wanted is None:
        return Tables(opened.tables, options)
    return Tables([FilteredTable(table, wanted) for table in opened.tables], options)


def look_into(file: TableFile) -> Table:
    """Opens a table file as `open_table` does, and keeps it for `open_all`, which opens it next."""
    if file.looked_into is None:
        file.looked_into = open_table(file)
    table: Table = file.looked_into
    return table


def open_table(file: TableFile | str) -> Table:
    """Opens a table file and reads its schema.

    Raises:
        SourceNotFound: If it cannot be read.
        ShardCorrupt: If it is empty or damaged.
        DatasetNotFound: If it is a shard of a packed dataset.
        SchemaError: If two of its columns have the same name.
        StoreError: If its store does not deliver it.
    """
    kinds: dict[str, type[Table]] = {
        "parquet": ParquetTable,
        "arrow": ArrowTable,
        "csv": CsvTable,
        "jsonl": JsonTable,
        "lance": LanceTable,
        "text": LinesTable,
    }
    file = as_file(file)
    if file.size() == 0:
        raise ShardCorrupt(f"{file.name} is empty: it has 0 bytes; write it again, or leave it out")
    table: Table = kinds[file.kind](file)  # type: ignore[call-arg]
    with reading(file.name):
        table.schema.to_string(show_field_metadata=False, show_schema_metadata=False)  # or no UTF-8
        names = table.schema.names
        metadata = table.schema.metadata or {}
    if file.about is not None and file.about.features and FEATURES_KEY not in metadata:
        told = json.dumps({"info": {"features": file.about.features}})
        table.schema = table.schema.with_metadata({**metadata, FEATURES_KEY: told})
    if METADATA_KEY in metadata:
        raise DatasetNotFound(
            f"{file.name} is a shard of a packed dataset, which can only be read with its "
            f"manifest: open the folder; if {MANIFEST_NAME} is missing there, copy it from the "
            "original dataset, or pack the data again"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{file.name}: several columns have the name {twice[0]!r}: rename them")
    return table
