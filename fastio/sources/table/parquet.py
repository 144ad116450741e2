"""Parquet files: their footers are checked first, and flat columns are decoded natively.

A footer may be damaged or forged, and some such footers make pyarrow crash the process. pyarrow
decodes columns that are not numbers, and encodings that the native decoder does not support.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.runtime.cores import available_cores
from fastio.runtime.properties import cached_property
from fastio.runtime.threads import DaemonPool
from fastio.sources.table.arrow import check_column
from fastio.sources.table.data import Data, Fetched, SeekableFile
from fastio.sources.table.leaves import has_dictionary
from fastio.sources.table.objects import LocalFile, TableFile, as_file
from fastio.sources.table.reading import AtHand, Grouped, Handles, reading

_ANY_BYTES = 1 << 62
_BUFFER_BYTES = 4096
_FIRST_BYTES = 256 << 10  # fetched at a time, where only the first rows are wanted


def check_footer(metadata: pa_parquet.FileMetaData, nbytes: int) -> None:
    """Checks the description of every column of every row group, in a file of `nbytes` bytes.

    pyarrow ends the process (C++ `terminate`) if `RowGroupMetaData.column` finds a description that
    contradicts itself, such as a histogram of a wrong size. No Python code can catch that. A read
    of row groups checks the same descriptions first, and raises an error. So this function begins
    to read the row groups from a file that refuses to be read.

    Raises:
        OSError: If a description contradicts itself, if the file is too short for it, or if a row
            group has a negative number of rows.
    """
    groups = list(range(metadata.num_row_groups))
    if metadata.num_rows < 0 or any(metadata.row_group(group).num_rows < 0 for group in groups):
        raise OSError("a row group has a negative number of rows")
    try:
        with pa_parquet.ParquetFile(_Unread(nbytes), metadata=metadata, pre_buffer=True) as file:
            file.read_row_groups(groups, use_threads=False)
    except _Reached as reached:  # all descriptions were looked at
        # pyarrow's reader keeps the error. Its traceback refers to the reader and to all callers,
        # which is a cycle that the garbage collector does not see.
        reached.__traceback__ = None
    except NotImplementedError:
        pass  # a column that pyarrow has no type for, which nobody need ask for


def check_codecs(metadata: pa_parquet.FileMetaData, group: int, columns: Sequence[int]) -> None:
    """Checks the compression of columns of a row group. An unknown one would end the process too.

    Raises:
        OSError: If pyarrow does not know a column's compression.
    """
    # Buffered, or the data would be read before the compression is looked at.
    with pa_parquet.ParquetFile(
        _Unread(_ANY_BYTES), metadata=metadata, pre_buffer=False, buffer_size=_BUFFER_BYTES
    ) as file:
        for column in columns:
            with suppress(_Reached, NotImplementedError):
                file.reader.read_row_group(group, column_indices=[column], use_threads=False)


class _Reached(Exception):
    """Data would be read now."""


class _Unread(SeekableFile):
    """A file of a given size, from which nothing can be read."""

    def read(self, size: int = -1) -> bytes:
        raise _Reached


# Arrow types whose values have the same bytes in Parquet, by Parquet's physical type.
_PHYSICAL = {
    "INT32": (pa.int32(), pa.uint32(), pa.date32()),
    "INT64": (pa.int64(), pa.uint64()),
    "FLOAT": (pa.float32(),),
    "DOUBLE": (pa.float64(),),
}
_CODECS = ("UNCOMPRESSED", "SNAPPY")
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}  # or of levels
_ALIGNMENT = 64  # of columns in the memory of a row group: the size of any value divides it
# Unused bytes after each column. Without them, the same rows of many columns may map to the same
# sets of a cache, and evict each other while columns are copied to records.
_APART = 256

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

    @property
    def width(self) -> int:
        width: int = self.column.field.type.bit_width
        return width // 8


def flat_columns(metadata: pa_parquet.FileMetaData, schema: pa.Schema) -> dict[str, FlatColumn]:
    """Returns the columns of a file that may be decoded natively, by name."""
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
        path, metadata, schema: The file's path for messages, its footer and its Arrow schema.
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
        # For row groups and columns that were read: offset and length of each column chunk, and the
        # index of its codec in _CODECS, or -1 if pyarrow has to decode it.
        self._stored: dict[tuple[int, tuple[str, ...]], NDArray[np.int64]] = {}

    def read(
        self,
        group: int,
        columns: Sequence[str],
        data: Bytes,
        others: Others,
        handles: Handles,
        threads: bool,
    ) -> pa.Table:
        """Returns columns of a row group, exactly as pyarrow reads them.

        Args:
            group: The number of the row group.
            columns: The names of the columns, each once.
            data: Returns bytes of the file.
            others: Reads, with pyarrow, the columns that are not decoded natively.
            handles: Those of the calling thread. The natively decoded columns lie in their memory.
            threads: Whether several threads may decode.

        Raises:
            ShardCorrupt: If a column is damaged.
        """
        rows = self._metadata.row_group(group).num_rows
        where = f"{self._path}, row group {group}"
        arrays: dict[str, Any] = {}
        if rows:
            flat = [self._flat[name] for name in columns if name in self._flat]
            chunks = [
                _Chunk(column, rows, _CODECS[codec] == "SNAPPY", data(offset, length))
                for column, (offset, length, codec) in zip(
                    flat, self._places(group, flat, where), strict=True
                )
                if codec >= 0
            ]
            with reading(where):
                arrays = _decoded(chunks, handles, threads, self._checked, where)
        left = [name for name in columns if name not in arrays]
        if not arrays:
            return others(left)
        if left:
            table = others(left)
            arrays |= {name: table.column(name) for name in left}
        fields = [self._schema.field(name) for name in columns]
        schema = pa.schema(fields, metadata=self._schema.metadata)
        return pa.table([arrays[name] for name in columns], schema=schema)

    def _places(self, group: int, columns: Sequence[FlatColumn], where: str) -> list[list[int]]:
        """Returns offset, length and codec of column chunks; see `_stored`."""
        key = group, tuple(column.field.name for column in columns)
        found = self._stored.get(key)
        if found is None:
            self._check_codecs(group, [column.number for column in columns], where)
            about = self._metadata.row_group(group)
            places = [_place(about.column(column.number), where) for column in columns]
            found = self._stored[key] = np.array(places, np.int64).reshape(-1, 3)
        listed: list[list[int]] = found.tolist()
        return listed

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
    chunks: Sequence[_Chunk], handles: Handles, threads: bool, checked: bool, where: str
) -> dict[str, pa.Array]:
    """Returns the columns by name, except those with pages that pyarrow has to decode.

    `where` names the row group.
    """
    sizes = [(c.rows * c.width, -(-c.rows // 8) if c.column.nullable else 0) for c in chunks]
    total = sum(_aligned(n) for pair in sizes for n in pair) + _APART * len(sizes)
    try:
        memory = handles.memory.take(total)
    except (MemoryError, OverflowError, ValueError) as error:  # beyond the address space
        raise pa.ArrowMemoryError(f"there is no memory for {total:,} bytes") from error
    at = 0
    jobs: list[tuple[_Chunk, NDArray[np.uint8], NDArray[np.uint8]]] = []
    for chunk, (values, validity) in zip(chunks, sizes, strict=True):
        bits = at + _aligned(values)
        jobs.append((chunk, memory[at : at + values], memory[bits : bits + validity]))
        at = bits + _aligned(validity) + _APART

    def decode(job: tuple[_Chunk, NDArray[np.uint8], NDArray[np.uint8]]) -> pa.Array | None:
        # A decoder keeps memory for pages, and is used by one thread at a time.
        decoder = handles.decoder if workers < 2 else _native.ColumnDecoder()
        return _decode(*job, decoder, checked, where)

    workers = min(available_cores(), len(chunks)) if threads else 1
    if workers > 1:
        with DaemonPool(workers, "fastio-columns") as pool:
            found = list(pool.map(decode, jobs))
    else:
        found = list(map(decode, jobs))
    pairs = zip(chunks, found, strict=True)
    return {chunk.column.field.name: array for chunk, array in pairs if array is not None}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _place(chunk: pa_parquet.ColumnChunkMetaData, where: str) -> tuple[int, int, int]:
    """Returns offset, length and codec of a column chunk; see `ColumnReader._stored`."""
    codec = chunk.compression
    # Single pages may have encodings that the footer does not name: `_decode` finds them.
    if codec not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings):
        return 0, 0, -1
    return *chunk_range(chunk, where), _CODECS.index(codec)


def _decode(
    chunk: _Chunk,
    values: NDArray[np.uint8],
    validity: NDArray[np.uint8],
    decoder: _native.ColumnDecoder,
    checked: bool,
    where: str,
) -> pa.Array | None:
    """Returns a column, decoded to values and validity; None if pyarrow has to decode pages."""
    column, rows = chunk.column, chunk.rows
    try:
        nulls = decoder.decode(
            chunk.data,
            rows,
            chunk.width,
            column.nullable,
            chunk.snappy,
            values,
            validity,
            checked,
        )
    except ValueError as error:
        raise ShardCorrupt(
            f"{where}, column {column.field.name!r}: {error}; copy the file again, or write it "
            "again"
        ) from error
    if nulls < 0:
        return None
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(values)]
    return pa.Array.from_buffers(column.field.type, rows, buffers, null_count=nulls)


class ParquetTable(Grouped):
    """A Parquet file, which is read row group by row group.

    Attributes:
        file: The file.
        metadata: Its footer.
    """

    def __init__(self, file: TableFile | str) -> None:
        self.file = as_file(file)
        self.name = self.file.name
        self.metadata: pa_parquet.FileMetaData
        self.file.opened(self._open)
        # The columns of a group are fetched together, and decoded natively where that is possible.
        self._columns = ColumnReader(
            self.name, self.metadata, self.schema, checked=self.file.remote
        )
        self._ranges: dict[tuple[int, tuple[str, ...]], NDArray[np.int64]] = {}

    def _open(self) -> None:
        with (
            reading(self.name, kind="Parquet"),
            pa_parquet.ParquetFile(self.file.tail().source()) as opened,
        ):
            self.schema = opened.schema_arrow
            self.metadata = opened.metadata
            check_footer(self.metadata, self.file.size())
            self.rows = self.metadata.num_rows
            self._has_dictionaries = any(has_dictionary(field.type) for field in self.schema)

    def ranges(self, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Returns the ranges (offset, length) of a row group's columns in the file."""
        key = group, tuple(columns)
        known = self._ranges.get(key)
        if known is not None:
            return [(offset, length) for offset, length in known.tolist()]
        about = self.metadata.row_group(group)
        wanted = tuple(f"{name}." for name in columns)
        chunks = (about.column(number) for number in range(about.num_columns))
        where = f"{self.name}, row group {group}"
        with reading(where):
            found = [
                chunk_range(chunk, where)
                for chunk in chunks
                if f"{chunk.path_in_schema}.".startswith(wanted)
            ]
        self._ranges[key] = np.array(found, np.int64).reshape(-1, 2)
        return found

    def reader(self, data: Data) -> pa_parquet.ParquetFile:
        """Returns pyarrow's reader of data that has the ranges that are read."""
        return data.opened(self._reader)

    def _reader(self, source: Any) -> pa_parquet.ParquetFile:
        return pa_parquet.ParquetFile(
            source,
            metadata=self.metadata,
            pre_buffer=False,  # it would request ranges of its own
            # Only of data that was transferred, and of pages that have a checksum.
            page_checksum_verification=self.file.remote,
        )

    def first_rows(self, columns: Sequence[str], rows: int) -> pa.RecordBatch | None:
        """Returns columns of up to `rows` first rows, of which only the first pages are read.

        None if there are no rows.
        """
        source = self.file.mapped() if isinstance(self.file, LocalFile) else None
        data: Data = Fetched(self.file, []) if source is None else source
        with (
            reading(self.name),
            pa_parquet.ParquetFile(
                data.source(),
                metadata=self.metadata,
                buffer_size=_FIRST_BYTES,
                pre_buffer=False,
            ) as file,
        ):
            batches = file.iter_batches(rows, columns=list(columns), use_threads=False)
            return next((batch for batch in batches if batch.num_rows), None)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Grouped`."""
        found: list[tuple[int, int]] = []
        with reading(self.name):
            for number in range(self.metadata.num_row_groups):
                group = self.metadata.row_group(number)
                if not found:  # the columns have the same numbers in all row groups
                    every = range(group.num_columns if varying else 0)
                    paths = {n: group.column(n).path_in_schema for n in every}
                    wide = [n for n, path in paths.items() if path.split(".")[0] in varying]
                nbytes = sum(group.column(column).total_uncompressed_size for column in wide)
                found.append((group.num_rows, nbytes))
        return found

    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """See `Grouped`."""
        names, ranges = list(columns), self.ranges(number, columns)

        def batches(data: Data) -> Iterator[pa.RecordBatch]:
            reader = self.reader(data)
            if rows is None:

                def others(left: list[str]) -> pa.Table:
                    return reader.read_row_group(number, columns=left, use_threads=threads)

                whole = self._columns.read(
                    number, names, data.data, others, at_hand.handles, threads
                )
                found = whole.to_batches()
            else:
                found = reader.iter_batches(
                    rows, row_groups=[number], columns=names, use_threads=threads
                )
            if not self._has_dictionaries:
                return iter(found)
            return with_checked_dictionaries(found, f"{self.name}, row group {number}")

        fetch = partial(self.file.fetch, ranges)
        if isinstance(self.file, LocalFile):
            data: Data = at_hand.opened(self.name, self.file.mapped).more(ranges)
        else:
            data = at_hand.take(self.file, tuple(ranges), fetch)
        return self.file.intact(data, fetch, batches)

    def ahead(self, number: int, columns: Sequence[str], at_hand: AtHand) -> bool:
        """See `Grouped`."""
        ranges = self.ranges(number, columns)
        nbytes = sum(length for _, length in ranges)
        return at_hand.begin(self.file, tuple(ranges), nbytes, partial(self.file.fetch, ranges))


def with_checked_dictionaries(
    batches: Iterable[pa.RecordBatch], where: str
) -> Iterator[pa.RecordBatch]:
    """Yields batches of a Parquet file, whose dictionaries' indices pyarrow has not checked.

    Raises:
        ShardCorrupt: If an index is not in its dictionary. The message names `where` and column.
    """
    for batch in batches:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if has_dictionary(field.type):
                check_column(column, field.name, where)
        yield batch


def chunk_range(chunk: pa_parquet.ColumnChunkMetaData, where: str) -> tuple[int, int]:
    """Returns the range (offset, length) of a column chunk in a Parquet file.

    Raises:
        ShardCorrupt: If the footer's values are impossible. `where` names the row group.
    """
    begin, length = chunk.data_page_offset, chunk.total_compressed_size
    if chunk.dictionary_page_offset:
        begin = min(begin, chunk.dictionary_page_offset)
    if begin < 0 or length < 0:
        raise ShardCorrupt(
            f"{where}: column {chunk.path_in_schema!r} has an impossible position in the "
            f"footer, {length} bytes at {begin}: write the file again"
        )
    return begin, length
