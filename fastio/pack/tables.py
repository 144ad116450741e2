"""Tables as a source: rows in pieces, as Arrow has them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import xxhash

from fastio.errors import PackError, SchemaError
from fastio.formats.tables import (
    Conversion,
    MemoryTable,
    Piece,
    StreamTable,
    TableOptions,
    Tables,
    open_files,
    stamp,
)
from fastio.schema import Schema

# Rows that are converted at a time. Shards' statistics are summed up in pieces of it, so that it
# is a part of what makes a dataset's bytes.
PIECE_ROWS = 32768


class TableSource:
    """Tables: a row a sample.

    Args:
        tables: the rows.
        options: what is wanted of them.
        name: what the manifest says the dataset was made of.
        paths: the tables' files; empty for those in memory.

    Attributes:
        name: as given.
        schema: the fields.
        total: number of rows, or None when that is not known beforehand.
        options: as given.
        conversion: the tables' columns to fields.
    """

    def __init__(
        self, tables: Tables, options: TableOptions, name: str, paths: list[str] | None = None
    ) -> None:
        self.name = name
        self.options = options
        self.total = tables.total
        self.schema: Schema = tables.schema
        self.conversion: Conversion = tables.conversion
        self._tables = tables
        self._paths = paths or []

    def pieces(self, start: int) -> Iterator[Piece]:
        """The rows from number `start` on; pieces end where numbers are multiples of PIECE_ROWS.

        Raises:
            ShardCorrupt: a file is damaged.
        """
        return self._tables.pieces(start, PIECE_ROWS)

    def identity(self) -> Mapping[str, Any]:
        """What the dataset's bytes depend on beside the files, JSON values."""
        return {"table": self.options.to_json()}

    def packing(self) -> Mapping[str, Any]:
        """What the manifest says of how it was made."""
        return self.identity()

    def stamp(self) -> str:
        """What changes when one of the files does; that of nothing for tables in memory."""
        return stamp(self._paths) if self._paths else xxhash.xxh3_64().hexdigest()


def open_table_files(src: Any, paths: list[str], options: TableOptions) -> TableSource:
    """Table files as a source.

    Args:
        src: what the user called them.
        paths: what `find_tables` found.
        options: what is wanted.

    Raises:
        SourceNotFound, ShardCorrupt, SchemaError: as `open_files`.
    """
    spoken = src if isinstance(src, (str, os.PathLike)) else paths[0]
    name = os.path.basename(os.path.abspath(os.fspath(spoken)))
    return TableSource(open_files(paths, options), options, name, paths)


def open_memory(src: Any, options: TableOptions) -> TableSource | None:
    """Arrow data in memory as a source; None where it is none.

    Args:
        src: an Arrow Table, RecordBatch or RecordBatchReader, or what gives an Arrow stream (a
            pandas or polars DataFrame).
        options: what is wanted.

    Raises:
        SchemaError: as `Tables`, or a stream has dictionary-encoded strings.
    """
    name = type(src).__name__
    if isinstance(src, pa.RecordBatch):
        src = pa.Table.from_batches([src])
    if not isinstance(src, (pa.Table, pa.RecordBatchReader)):
        if not hasattr(src, "__arrow_c_stream__"):
            return None
        src = pa.RecordBatchReader.from_stream(src).read_all()
    if isinstance(src, pa.Table):
        return TableSource(Tables([MemoryTable(name, src)], options), options, name)
    for column in src.schema:
        if pa.types.is_dictionary(column.type):
            raise SchemaError(
                f"{name}: column {column.name!r} is dictionary-encoded, and all its words are to "
                "be known first: give a Table (reader.read_all()), or files"
            )
    return TableSource(Tables([StreamTable(name, src)], options), options, name)


def refuse_image_options(name: str, **options: Any) -> None:
    """Options that are about images, or single samples, are refused for tables.

    Raises:
        PackError: one of them is given.
    """
    for option, value in options.items():
        if value is not None:
            raise PackError(f"{option} is not for tables, and {name} is one")
