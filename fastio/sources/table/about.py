"""What table files consist of, by their footers: what `fastio info` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastio.runtime.threads import DaemonPool
from fastio.schema import Field
from fastio.sources.table.binary_files import ArrowTable, ParquetTable
from fastio.sources.table.files import table_kind
from fastio.sources.table.footers import check_codecs
from fastio.sources.table.leaves import Leaf, field_or_none, leaves
from fastio.sources.table.objects import TableFile
from fastio.sources.table.opening import open_all
from fastio.sources.table.reading import Table, reading
from fastio.sources.table.wrapped import unwrapped

_COUNTED_AT_ONCE = 4


@dataclass
class ColumnAbout:
    """A column of table files, or a part of a struct.

    Attributes:
        name: as the file has it, a part of a struct as `parent.child`.
        type: its Arrow type in the first file.
        kind: what it becomes; None: no field can hold it.
        compressions, encodings: of Parquet, names that all files use together.
        nbytes: compressed, in all files; None where footers do not tell.
        uncompressed: likewise, as pages are before they are compressed.
        nulls: None where footers do not tell, as of lists.
    """

    name: str
    type: str
    kind: Field | None
    compressions: set[str] = field(default_factory=set)
    encodings: set[str] = field(default_factory=set)
    nbytes: int | None = None
    uncompressed: int | None = None
    nulls: int | None = None


@dataclass(frozen=True)
class TablesAbout:
    """Table files.

    Attributes:
        kind: "parquet", "arrow", "csv" or "jsonl".
        files, nbytes: how many, and how large.
        rows: None for files of text in stores, which would have to be fetched.
        row_groups: of Parquet, or record batches of Arrow files; None for others.
        columns: of the first file.
        created_by: programs that wrote Parquet files.
    """

    kind: str
    files: int
    nbytes: int
    rows: int | None
    row_groups: int | None
    columns: Sequence[ColumnAbout]
    created_by: Sequence[str]


def describe_tables(files: Sequence[TableFile]) -> TablesAbout:
    """What files consist of. Footers are read, and files here without one to count their rows.

    Raises:
        SourceNotFound, ShardCorrupt, StoreError: one cannot be read.
        SchemaError: two of its columns have the same name.
    """
    opened = open_all(files)
    first = opened.tables[0]
    found = {leaf.name: _column(leaf) for leaf in leaves(first.schema, first.name).values()}
    inner = [unwrapped(table)[0] for table in opened.tables]
    writers: set[str] = set()
    for table in inner:
        if isinstance(table, ParquetTable):
            writers.add(table.metadata.created_by or "")
            _add_chunks(found, table)
    with DaemonPool(_COUNTED_AT_ONCE, "fastio-table-rows") as pool:
        counts = list(pool.map(_rows, inner, opened.files))
    return TablesAbout(
        table_kind(files[0].name) or "",
        len(files),
        sum(file.size() for file in opened.files),
        None if None in counts else sum(count or 0 for count in counts),
        _row_groups(inner),
        list(found.values()),
        sorted(filter(None, writers)),
    )


def _column(leaf: Leaf) -> ColumnAbout:
    return ColumnAbout(leaf.spoken, str(leaf.type), field_or_none(leaf.type))


def _add_chunks(found: dict[str, ColumnAbout], table: ParquetTable) -> None:
    """Adds what a file's column chunks take to the columns that they are of."""
    columns: dict[int, ColumnAbout] = {}
    for leaf in leaves(table.schema, table.name).values():
        for number in range(table.metadata.num_columns):
            path = table.metadata.schema.column(number).path
            if f"{path}.".startswith(f"{leaf.spoken}.") and leaf.name in found:
                columns[number] = found[leaf.name]
    for group in range(table.metadata.num_row_groups):
        about = table.metadata.row_group(group)
        with reading(table.name):
            check_codecs(table.metadata, group, list(columns))
        for number, column in columns.items():
            chunk = about.column(number)
            column.compressions.add(chunk.compression)
            column.encodings.update(chunk.encodings)
            column.nbytes = (column.nbytes or 0) + chunk.total_compressed_size
            column.uncompressed = (column.uncompressed or 0) + chunk.total_uncompressed_size
            told = chunk.statistics
            flat = not table.metadata.schema.column(number).max_repetition_level
            if flat and told is not None and told.has_null_count:  # of lists, empty ones count too
                column.nulls = (column.nulls or 0) + told.null_count


def _rows(table: Table, file: TableFile) -> int | None:
    """The rows of a file; None where a whole file would have to be fetched to tell."""
    if table.rows is not None or file.remote:
        return table.rows
    columns = table.schema.names[:1] if table.is_text else table.schema.names
    types = {name: table.schema.field(name).type for name in columns}
    return sum(int(batch.num_rows) for _, batch in table.batches(columns, types, 0, 1 << 16))


def _row_groups(tables: Sequence[Table]) -> int | None:
    if all(isinstance(table, ParquetTable) for table in tables):
        return sum(int(t.metadata.num_row_groups) for t in tables if isinstance(t, ParquetTable))
    arrow = [table for table in tables if isinstance(table, ArrowTable) and table.has_batches]
    return sum(len(t.batch_rows) for t in arrow) if len(arrow) == len(tables) else None
