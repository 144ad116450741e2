"""Decodes flat columns of numbers of Parquet files natively, and others with pyarrow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.runtime.cores import available_cores
from fastio.runtime.threads import DaemonPool
from fastio.sources.table.binary_files import chunk_range
from fastio.sources.table.footers import check_codecs
from fastio.sources.table.reading import reading

# Arrow types whose values have the same bytes in Parquet, by Parquet's physical type.
_PHYSICAL = {
    "INT32": (pa.int32(), pa.uint32(), pa.date32()),
    "INT64": (pa.int64(), pa.uint64()),
    "FLOAT": (pa.float32(),),
    "DOUBLE": (pa.float64(),),
}
_CODECS = ("UNCOMPRESSED", "SNAPPY")
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}  # or of levels
_NO_VALIDITY = np.empty(0, np.uint8)

# Returns the bytes of a range (offset, length) of a file: uint8 (length,), or fewer at its end.
Bytes = Callable[[int, int], np.ndarray]
# Reads columns of a row group, named, in this order.
Others = Callable[[list[str]], pa.Table]
# Writers whose footers say that column chunks are shorter than they are (PARQUET-816).
_SHORT_CHUNKS = re.compile(r"parquet-mr version 1\.[0-2]\.")


@dataclass(frozen=True)
class FlatColumn:
    """A column whose values have the same bytes in Arrow as in Parquet.

    Attributes:
        number: The number of its column chunk in each row group.
        field: The Arrow field.
        nullable: Whether it has definition levels.
    """

    number: int
    field: pa.Field
    nullable: bool


@dataclass(frozen=True)
class _Chunk:
    column: FlatColumn
    rows: int
    snappy: bool
    data: np.ndarray
    where: str


def flat_columns(metadata: pa_parquet.FileMetaData, schema: pa.Schema) -> dict[str, FlatColumn]:
    """Returns the columns that may be decoded natively, by name.

    Args:
        metadata: The file's footer.
        schema: The file's Arrow schema.
    """
    found: dict[str, FlatColumn] = {}
    if _SHORT_CHUNKS.match(metadata.created_by or ""):
        return found
    stored, names = metadata.schema, Counter(schema.names)
    for number in range(metadata.num_columns):
        column = stored.column(number)
        name = column.path
        if column.max_repetition_level or column.max_definition_level > 1 or names[name] != 1:
            continue
        field = schema.field(name)
        if field.type in _PHYSICAL.get(column.physical_type, ()):
            found[name] = FlatColumn(number, field, column.max_definition_level == 1)
    return found


class ColumnReader:
    """Reads columns of a Parquet file's row groups. Thread-safe.

    Args:
        path: The path of the file, for messages.
        metadata: The file's footer.
        schema: The file's Arrow schema.
        checked: Whether to verify the checksums of pages that have one.
    """

    def __init__(
        self,
        path: str,
        metadata: pa_parquet.FileMetaData,
        schema: pa.Schema,
        *,
        checked: bool = False,
    ) -> None:
        self._path = path
        self._checked = checked
        self._metadata = metadata
        self._schema = schema
        self._checked_codecs: set[tuple[int, int]] = set()

    def read(
        self,
        group: int,
        columns: Sequence[str],
        data: Bytes,
        others: Others,
        decoder: _native.ColumnDecoder,
        threads: bool,
    ) -> pa.Table:
        """Returns columns of a row group, exactly as pyarrow reads them.

        Args:
            group: The number of the row group.
            columns: The names of the columns, each once.
            data: Returns bytes of the file.
            others: Reads, with pyarrow, the columns that are not decoded natively.
            decoder: The calling thread's decoder.
            threads: Whether several threads may decode.

        Raises:
            ShardCorrupt: If a column is damaged.
        """
        about = self._metadata.row_group(group)
        where = f"{self._path}, row group {group}"
        arrays: dict[str, Any] = {}
        if about.num_rows:
            flat = [self._flat[name] for name in columns if name in self._flat]
            self._check_codecs(group, [column.number for column in flat], where)
            chunks = [_chunk(about, column, data, where) for column in flat]
            known = [chunk for chunk in chunks if chunk is not None]
            arrays = _decoded(known, decoder, threads, self._checked)
        left = [name for name in columns if name not in arrays]
        if not arrays:
            return others(left)
        if left:
            table = others(left)
            arrays |= {name: table.column(name) for name in left}
        fields = [self._schema.field(name) for name in columns]
        schema = pa.schema(fields, metadata=self._schema.metadata)
        return pa.table([arrays[name] for name in columns], schema=schema)

    def _check_codecs(self, group: int, columns: Sequence[int], where: str) -> None:
        """Checks the compression of columns that have not been read before."""
        new = [column for column in columns if (group, column) not in self._checked_codecs]
        if new:
            with reading(where):
                check_codecs(self._metadata, group, new)
            self._checked_codecs.update((group, column) for column in new)

    @cached_property
    def _flat(self) -> dict[str, FlatColumn]:
        return flat_columns(self._metadata, self._schema)


def _decoded(
    chunks: Sequence[_Chunk], decoder: _native.ColumnDecoder, threads: bool, checked: bool
) -> dict[str, pa.Array]:
    """Returns the columns by name, except those with pages that pyarrow has to decode."""
    workers = min(available_cores(), len(chunks)) if threads else 1
    if workers > 1:
        with DaemonPool(workers, "fastio-columns") as pool:
            found = list(
                pool.map(lambda chunk: _decode(chunk, _native.ColumnDecoder(), checked), chunks)
            )
    else:
        found = [_decode(chunk, decoder, checked) for chunk in chunks]
    pairs = zip(chunks, found, strict=True)
    return {chunk.column.field.name: array for chunk, array in pairs if array is not None}


def _chunk(
    about: pa_parquet.RowGroupMetaData, column: FlatColumn, data: Bytes, where: str
) -> _Chunk | None:
    """Returns a column chunk; None if pyarrow has to decode its compression or encoding."""
    chunk = about.column(column.number)
    codec = chunk.compression
    if codec not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings):
        return None
    pages = data(*chunk_range(chunk, where))
    where = f"{where}, column {column.field.name!r}"
    return _Chunk(column, about.num_rows, codec == "SNAPPY", pages, where)


def _decode(chunk: _Chunk, decoder: _native.ColumnDecoder, checked: bool) -> pa.Array | None:
    """Returns a column; None if it has pages that pyarrow has to decode."""
    column, rows = chunk.column, chunk.rows
    width = column.field.type.bit_width // 8
    values = pa.allocate_buffer(rows * width)
    validity = pa.allocate_buffer(-(-rows // 8)) if column.nullable else None
    bits = _NO_VALIDITY if validity is None else np.frombuffer(validity, np.uint8)
    try:
        nulls = decoder.decode(
            chunk.data,
            rows,
            width,
            column.nullable,
            chunk.snappy,
            np.frombuffer(values, np.uint8),
            bits,
            checked,
        )
    except ValueError as error:
        raise ShardCorrupt(f"{chunk.where}: {error}; copy the file again, or write it again") from (
            error
        )
    if nulls < 0:
        return None
    buffers = [validity if nulls else None, values]
    return pa.Array.from_buffers(column.field.type, rows, buffers, null_count=nulls)
