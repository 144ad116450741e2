"""Tables as a source: rows in pieces of Arrow data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from fastio.errors import PackError, SchemaError
from fastio.schema import Schema
from fastio.shown import without_secrets
from fastio.sources.table import (
    Conversion,
    Filter,
    MemoryTable,
    Opened,
    Piece,
    StreamTable,
    Table,
    TableFile,
    TableOptions,
    Tables,
    joined,
    open_all,
    stamp,
)
from fastio.store import is_remote

# Rows that are converted at a time. Shards' statistics are summed up in pieces of it, so that it
# is a part of what makes a dataset's bytes.
PIECE_ROWS = 32768


class TableSource:
    """Tables, of which each row is a sample; see `columnar.RowSource`.

    Args:
        tables: The rows.
        options: Which columns become which fields.
        name: What the manifest says the dataset was made of.
        files: The files of the tables; empty for tables in memory.
        filters: The condition for rows, as the manifest shows it; "" for all rows.
        skipped: (name, reason) of the files that are left out.

    Attributes:
        conversion: The conversion of the tables' columns to fields.
    """

    def __init__(
        self,
        tables: Tables,
        options: TableOptions,
        name: str,
        files: Sequence[TableFile] = (),
        filters: str = "",
        skipped: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.name = name
        self.unit = "rows"
        self.options = options
        self.total = tables.total
        self.schema: Schema = tables.schema
        self.conversion: Conversion = tables.conversion
        self._tables = tables
        self.skipped = list(skipped)
        self._files = files
        self._filters = filters

    @property
    def has_files(self) -> bool:
        """Returns whether the rows are in files."""
        return bool(self._files)

    def pieces(self, start: int) -> Iterator[Piece]:
        """Yields the rows from number `start` on; pieces end at multiples of PIECE_ROWS.

        Raises:
            ShardCorrupt: A file is damaged.
        """
        return self._tables.pieces(start, PIECE_ROWS)

    def identity(self) -> Mapping[str, Any]:
        """Returns what the dataset's bytes depend on beside the files, as JSON values."""
        about = self.options.to_json()
        return {"table": {**about, "filters": self._filters} if self._filters else about}

    def packing(self) -> Mapping[str, Any]:
        """Returns what the manifest says of how the dataset was made, as JSON values."""
        return {**self.identity(), "skipped": len(self.skipped)}

    def stamp(self) -> str:
        """Returns a hash that changes if a file does; a constant for tables in memory."""
        return stamp(self._files) if self._files else xxhash.xxh3_64().hexdigest()


def open_table_files(
    src: Any,
    files: Sequence[TableFile],
    options: TableOptions,
    filters: Any = None,
    skip_damaged: bool = False,
) -> TableSource:
    """Returns table files as a source.

    Args:
        src: The source as the user gave it, for the manifest.
        files: The files that `find_tables` found.
        options: Which columns become which fields.
        filters: The rows to pack; None for all.
        skip_damaged: Whether to leave out files that are empty or cannot be opened. Files whose
            damage is found later cannot be left out, because resuming counts rows.

    Raises:
        SourceNotFound, StoreError, ShardCorrupt, SchemaError: as `open_files`.
    """
    opened = open_all(files, filters, skip_damaged=skip_damaged)
    spoken = src if isinstance(src, (str, os.PathLike)) else files[0].name
    condition = "" if opened.wanted is None else str(opened.wanted)
    tables = joined(opened, options)
    return TableSource(tables, options, _base(spoken), opened.files, condition, opened.skipped)


def _base(path: str | os.PathLike[str]) -> str:
    if is_remote(path):
        return without_secrets(str(path)).rstrip("/").rpartition("/")[2]
    return os.path.basename(os.path.abspath(os.fspath(path)))


def open_memory(src: Any, options: TableOptions, filters: Any = None) -> TableSource | None:
    """Returns Arrow data in memory as a source, or None for other objects.

    Args:
        src: An Arrow Table, RecordBatch or RecordBatchReader, or an object that gives an Arrow
            stream (a pandas or polars DataFrame).
        options: Which columns become which fields.
        filters: The rows to pack; None for all.

    Raises:
        SchemaError: as `Tables` and `Filter.of`, or a stream has dictionary-encoded strings.
    """
    name = type(src).__name__
    if isinstance(src, pa.RecordBatch):
        src = pa.Table.from_batches([src])
    if not isinstance(src, (pa.Table, pa.RecordBatchReader)):
        if not hasattr(src, "__arrow_c_stream__"):
            return None
        src = pa.RecordBatchReader.from_stream(src).read_all()
    if isinstance(src, pa.Table):
        return _in_memory(MemoryTable(name, src), options, filters)
    for column in src.schema:
        if pa.types.is_dictionary(column.type):
            raise SchemaError(
                f"{name}: column {column.name!r} is dictionary-encoded, and all its words are to "
                "be known first: give a Table (reader.read_all()), or files"
            )
    return _in_memory(StreamTable(name, src), options, filters)


def _in_memory(table: Table, options: TableOptions, filters: Any) -> TableSource:
    wanted = Filter.of(filters, table.schema, table.name)
    tables = joined(Opened((), [table], wanted), options)
    condition = "" if wanted is None else str(wanted)
    return TableSource(tables, options, table.name, filters=condition)


def refuse_image_options(name: str, **options: Any) -> None:
    """Checks that no option for images or single samples is given for a table.

    Raises:
        PackError: One of them is given.
    """
    for option, value in options.items():
        if value is not None:
            raise PackError(f"{option} is not for tables, and {name} is one")
