"""Opens a table file of any type, and tables and streams in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from fastio.errors import DatasetNotFound, SchemaError, ShardCorrupt
from fastio.packed.manifest_writer import MANIFEST_NAME, METADATA_KEY
from fastio.sources.table.binary_files import ArrowTable, ParquetTable
from fastio.sources.table.files import table_kind
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.reading import Batches, Table, reading, skipped_to
from fastio.sources.table.text_files import CsvTable, JsonTable
from fastio.sources.table.trust import Checks


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
    }
    file = as_file(file)
    if file.size() == 0:
        raise ShardCorrupt(f"{file.name} is empty: it has 0 bytes; write it again, or leave it out")
    table: Table = kinds[table_kind(file.name) or ""](file)  # type: ignore[call-arg]
    with reading(file.name):
        table.schema.to_string(show_field_metadata=False, show_schema_metadata=False)  # or no UTF-8
        names = table.schema.names
        metadata = table.schema.metadata or {}
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


class MemoryTable:
    """An Arrow table in memory.

    Args:
        name: The name for messages.
        table: The table; anything with `to_batches`.
    """

    def __init__(self, name: str, table: pa.Table) -> None:
        self.is_text = False
        self.name = name
        self.schema: pa.Schema = table.schema
        self.rows: int | None = table.num_rows
        self._table = table
        self._checks = Checks(name)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        batches = iter(self._table.to_batches())
        yield from skipped_to(self.name, batches, start, columns, self._checks)


class StreamTable:
    """A stream of Arrow record batches, which can be read once.

    Args:
        name: The name for messages.
        reader: The reader of the stream.
    """

    def __init__(self, name: str, reader: pa.RecordBatchReader) -> None:
        self.is_text = False
        self.name = name
        self.schema: pa.Schema = reader.schema
        self.rows: int | None = None
        self._reader = reader
        self._checks = Checks(name)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`. Can be called only once."""
        batches = iter(self._reader)
        yield from skipped_to(self.name, batches, start, columns, self._checks)


__all__ = [
    "ArrowTable",
    "Batches",
    "MemoryTable",
    "ParquetTable",
    "StreamTable",
    "Table",
    "open_table",
    "reading",
    "skipped_to",
]
