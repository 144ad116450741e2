"""Shards: one file of rows each, written once and then only mapped.

A shard is an Arrow IPC file with one uncompressed record batch, whose buffers all begin at
multiples of 64 bytes of the file, so that a mapping of it can be used as arrays as it stands.
pyarrow writes IPC files aligned to 8 bytes and has no setting for it. `write_shard` therefore
takes the metadata that pyarrow writes for one row, puts the real lengths and offsets in, and
lays out the buffers itself.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import FastioError, ShardCorrupt, SourceNotFound
from fastio.schema import RECORD_COLUMN, RecordLayout

ALIGNMENT = 64
TEMP_SUFFIX = ".tmp"
_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_READ_BYTES = 1 << 20
_METADATA_KEY = b"fastio"
_NUMPY_TYPES = {
    pa.from_numpy_dtype(name): np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


def write_shard(path: str | os.PathLike[str], batch: pa.RecordBatch) -> tuple[int, str]:
    """Write a record batch as an Arrow IPC file, so that it is there whole or not at all.

    The file is written under a temporary name next to `path`, flushed to the disk, renamed, and
    the folder flushed too. What was at `path` is replaced.

    Args:
        path: the file to write.
        batch: at least one row; no nulls, no offsets into larger arrays.

    Returns:
        The file's size in bytes and the xxh3_64 of its bytes, as 16 hexadecimal digits.

    Raises:
        OSError: the file cannot be written (no space, no permission); the temporary file is gone.
    """
    path = Path(path)
    temp = path.with_name(path.name + TEMP_SUFFIX)
    digest = xxhash.xxh3_64()
    size = 0
    try:
        with open(temp, "wb") as file:
            for chunk in _ipc_chunks(batch):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise
    sync_folder(path.parent)
    return size, digest.hexdigest()


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk, so that renames in it outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: str | os.PathLike[str]) -> str:
    """The xxh3_64 of a file's bytes as 16 hexadecimal digits; reads the file once, in pieces.

    Raises:
        SourceNotFound: there is no such file.
        OSError: it cannot be read.
    """
    digest = xxhash.xxh3_64()
    try:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    except FileNotFoundError as error:
        raise SourceNotFound(f"{os.fspath(path)} does not exist") from error
    return digest.hexdigest()


def hash_columns(columns: Sequence[pa.Array], payloads: Sequence[int] = ()) -> str:
    """The xxh3_64 of columns' buffers, as they stand in a file, as 16 hexadecimal digits.

    Args:
        columns: all columns of a shard, in order.
        payloads: numbers of variable-width columns whose data is left out, offsets are not.
    """
    digest = xxhash.xxh3_64()
    for number, column in enumerate(columns):
        buffers = column.buffers()
        for buffer in buffers[:-1] if number in payloads else buffers:
            if buffer is not None:
                digest.update(memoryview(buffer))
    return digest.hexdigest()


class ShardReader:
    """Read-only views of one shard through a memory map.

    Opening checks the file's structure, not its data: `checksum` does that. Views stay valid
    after `close()`, since they keep the map alive; no file descriptor stays open. Safe to use
    from several threads.

    Args:
        path: the shard's file.
        name: how messages call it; None: by its path.
        layout: where the fields lie in the column of records, if there is one.

    Raises:
        SourceNotFound: there is no such file.
        ShardCorrupt: the file is not a whole Arrow file with one record batch without nulls.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        layout: RecordLayout | None = None,
    ) -> None:
        self.path = os.fspath(path) if name is None else name
        self._layout = layout
        mapping, self._batch = map_batch(os.fspath(path), ShardCorrupt, name)
        self._mapping: _native.Mapping | None = mapping
        self._size = len(mapping.data)
        self._address = mapping.data.ctypes.data
        self._views: dict[str, NDArray[Any]] = {}
        self._data_offsets: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._opened().num_rows)

    def check_columns(self, payloads: Sequence[str], most: int) -> None:
        """Compare the columns with the hash that the shard was written with.

        Args:
            payloads: columns of images' bytes, which are left out but for their offsets.
            most: do nothing if the columns have more bytes than this.

        Raises:
            ShardCorrupt: they are not those that were written.
        """
        batch = self._opened()
        names = batch.schema.names
        columns = [names.index(name) for name in payloads if name in names]
        size = sum(_size(b) for column in batch.columns for b in column.buffers())
        size -= sum(_size(batch.column(number).buffers()[-1]) for number in columns)
        if size > most:
            return
        try:
            expected = json.loads(batch.schema.metadata[_METADATA_KEY])["columns_xxh3"]
        except (KeyError, TypeError, ValueError) as error:
            raise ShardCorrupt(f"{self.path}: its description is damaged: {error!r}") from error
        found = hash_columns(batch.columns, columns)
        if found != expected:
            raise ShardCorrupt(
                f"{self.path} is damaged: its columns have the xxh3 {found}, expected {expected}; "
                "copy it again, or pack again"
            )

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        self._opened()
        return self._size

    @property
    def damaged(self) -> bool:
        """Whether the file was found cut off while it was read: what is missing reads as zeros."""
        return self.mapping.damaged

    @property
    def mapping(self) -> _native.Mapping:
        """The file in memory, for the engine's threads."""
        self._opened()
        assert self._mapping is not None
        return self._mapping

    def extent(self, column: str) -> tuple[int, int, int | None]:
        """Where a fixed-width column lies in the file: offset, bytes, and their CRC-32C if known.

        Raises:
            ShardCorrupt: there is no such column, or its rows have no fixed width.
        """
        if column == RECORD_COLUMN:
            records = self._records().buffers()[1]
            nbytes = self.rows * self._records().type.byte_width
            return int(records.address - self._address), nbytes, self._record_crc32c()
        view = self.fixed(column)
        return int(view.ctypes.data - self._address), view.nbytes, None

    def fixed(self, column: str) -> NDArray[Any]:
        """A fixed-width column as a read-only view of the map.

        Args:
            column: a numeric column, one of fixed-size lists, or a field in the records.

        Returns:
            Array of shape (rows,), or (rows, length) for lists, or (rows, *shape) for a field in
            the records, whose rows are apart by a record.

        Raises:
            ShardCorrupt: there is no such column, or its rows have no fixed width.
        """
        view = self._views.get(column)
        if view is None:
            if self._layout is not None and column in self._layout.offsets:
                view = self._views[column] = self._record_view()[column]
                return view
            array = flat = self._column(column)
            if pa.types.is_fixed_size_list(array.type):
                flat = array.values
            if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
                raise ShardCorrupt(f"{self.path}: {column!r} is {array.type}, not fixed in width")
            view = _view(flat.buffers()[1], _NUMPY_TYPES[flat.type], len(flat))
            if flat is not array:
                view = view.reshape(len(array), array.type.list_size)
            self._views[column] = view
        return view

    def offsets(self, column: str) -> NDArray[np.int64]:
        """Where each row of a variable-width column begins in the column's data.

        Returns:
            int64 (rows + 1,), a view of the map; row i is bytes [offsets[i], offsets[i + 1]).

        Raises:
            ShardCorrupt: there is no such column, its rows have a fixed width, or its offsets
                run backwards or leave the column's data.
        """
        view = self._views.get(column)
        if view is None:
            array = self._variable(column)
            view = _view(array.buffers()[1], np.int64, len(array) + 1)
            end = _size(array.buffers()[2])
            if view[0] < 0 or view[-1] > end or bool((view[1:] < view[:-1]).any()):
                raise ShardCorrupt(
                    f"{self.path}: the offsets of column {column!r} do not lie within its {end} "
                    "bytes of data; run `fastio verify` on the dataset"
                )
            self._views[column] = view
        return view

    def tokens(self, column: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """A column of tokens where it lies in the map.

        Returns:
            int64 (rows + 1,), where each row begins among the tokens, and all tokens, uint8,
            uint16 or uint32.

        Raises:
            ShardCorrupt: there is no such column, it is none of tokens, or its offsets run
                backwards or leave the tokens.
        """
        array = self._column(column)
        if not pa.types.is_large_list(array.type) or not pa.types.is_integer(array.type.value_type):
            raise ShardCorrupt(f"{self.path}: {column!r} is {array.type}, not tokens")
        flat = self._views.get(column)
        starts = _view(array.buffers()[1], np.int64, len(array) + 1)
        if flat is None:
            values = array.values
            flat = _view(values.buffers()[1], _NUMPY_TYPES[values.type], len(values))
            if starts[0] != 0 or starts[-1] != len(flat) or bool((starts[1:] < starts[:-1]).any()):
                raise ShardCorrupt(
                    f"{self.path}: the offsets of column {column!r} do not lie within its "
                    f"{len(flat)} tokens; run `fastio verify` on the dataset"
                )
            self._views[column] = flat
        return starts, flat

    def token_extent(self, column: str) -> tuple[int, int, None]:
        """Where a column's tokens lie in the file: offset and bytes; as `extent`, no CRC-32C.

        Raises:
            ShardCorrupt: as `tokens`.
        """
        flat = self.tokens(column)[1]
        return (int(flat.ctypes.data - self._address) if flat.size else 0), flat.nbytes, None

    def data_offset(self, column: str) -> int:
        """Where the data of a variable-width column begins, in bytes from the file's start."""
        begin = self._data_offsets.get(column)
        if begin is None:
            data = self._variable(column).buffers()[2]
            begin = 0 if data is None else int(data.address - self._address)
            self._data_offsets[column] = begin
        return begin

    def buffers(self, columns_without_data: Sequence[str] = ()) -> list[tuple[int, int]]:
        """Where the buffers of the columns lie: (offset in the file, bytes), in the file's order.

        Args:
            columns_without_data: variable-width columns of which only the offsets are told.
        """
        batch = self._opened()
        found = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            buffers = column.buffers()
            for buffer in buffers[:-1] if name in columns_without_data else buffers:
                if buffer is not None and buffer.size:
                    found.append((int(buffer.address - self._address), int(buffer.size)))
        return sorted(found)

    def view(self, column: str, local_row: int) -> NDArray[np.uint8]:
        """The bytes of one row of a variable-width column where they lie in the map: uint8 (n,).

        Raises:
            ShardCorrupt: as `offsets`.
        """
        begin, end = self.offsets(column)[local_row : local_row + 2].tolist()
        data = self._variable(column).buffers()[2] or b""
        return np.frombuffer(data, dtype=np.uint8)[begin:end]

    def values(self, column: str, local_rows: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """Rows of a variable-width column, copied out of the map.

        Args:
            column: a column of strings or bytes.
            local_rows: row numbers within this shard.

        Returns:
            One str (text columns) or bytes (binary columns) a row.

        Raises:
            ShardCorrupt: as `offsets`, or text that is not UTF-8.
            IndexError: a row number is out of range.
        """
        offsets = self.offsets(column)
        array = self._variable(column)
        data = memoryview(array.buffers()[2] or b"")
        rows = np.asarray(local_rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(array)):
            raise IndexError(f"{self.path} has {len(array)} rows, asked for {rows.tolist()}")
        spans = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
        if not pa.types.is_large_string(array.type):
            return [bytes(data[begin:end]) for begin, end in spans]
        try:
            return [str(data[begin:end], "utf-8") for begin, end in spans]
        except UnicodeDecodeError as error:
            raise ShardCorrupt(f"{self.path}: text in column {column!r}: {error}") from error

    def shape(self, field: str, local_row: int) -> tuple[int, ...]:
        """The shape of one row of a variable-shape array field."""
        extents = self._column(f"{field}.shape")[local_row].as_py()
        return tuple(int(extent) for extent in extents)

    def shapes(
        self, field: str, local_rows: NDArray[np.int64]
    ) -> NDArray[np.int64] | list[tuple[int, ...]]:
        """The shapes of rows of a variable-shape array field.

        Returns:
            int64 (n, axes), or a list of n tuples where rows differ in axes.

        Raises:
            ShardCorrupt: there is no such field, or its shapes are damaged.
        """
        ends, lengths = self._shape_lists(f"{field}.shape")
        begins = ends[local_rows].astype(np.int64)
        axes = ends[local_rows + 1] - begins
        if not len(local_rows) or bool((axes != axes[0]).any()):
            return [self.shape(field, row) for row in local_rows.tolist()]
        found: NDArray[np.int64] = lengths[begins[:, None] + np.arange(axes[0])]
        return found

    def _shape_lists(self, name: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """A column of shapes: int32 (rows + 1,), where each begins among the lengths, and these."""
        column = self._column(name)
        if column.type != pa.list_(pa.field("item", pa.int64(), nullable=False)):
            raise ShardCorrupt(f"{self.path}: {name!r} is {column.type}, not shapes")
        lengths = _view(column.values.buffers()[1], np.int64, len(column.values))
        ends = self._views.get(name)
        if ends is None:
            ends = _view(column.buffers()[1], np.int32, len(column) + 1)
            backwards = bool((ends[1:] < ends[:-1]).any())
            if ends[0] < 0 or backwards or ends[-1] > len(lengths) or lengths.min(initial=0) < 0:
                raise ShardCorrupt(
                    f"{self.path}: the shapes of column {name!r} are damaged; run `fastio verify` "
                    "on the dataset"
                )
            self._views[name] = ends
        return ends, lengths

    def close(self) -> None:
        """Let go of the map. Views taken before keep it alive; the reader cannot be used again."""
        self._mapping = self._batch = None
        self._views, self._data_offsets = {}, {}

    def _opened(self) -> pa.RecordBatch:
        if self._batch is None:
            raise ValueError(f"{self.path}: this shard reader was closed")
        return self._batch

    def _records(self) -> pa.Array:
        array = self._column(RECORD_COLUMN)
        nbytes = 0 if self._layout is None else self._layout.nbytes
        if array.type != pa.binary(nbytes):
            raise ShardCorrupt(
                f"{self.path}: its records are {array.type}, expected {nbytes} bytes"
            )
        return array

    def _record_view(self) -> NDArray[Any]:
        assert self._layout is not None
        array = self._records()
        return _view(array.buffers()[1], self._layout.dtype, len(array))

    def _record_crc32c(self) -> int:
        """Of the records' bytes, as the shard's description says."""
        try:
            text = json.loads(self._opened().schema.metadata[_METADATA_KEY])["record_crc32c"]
            return int(text, 16)
        except (KeyError, TypeError, ValueError) as error:
            raise ShardCorrupt(f"{self.path}: its description is damaged: {error!r}") from error

    def _column(self, name: str) -> pa.Array:
        batch = self._opened()
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise ShardCorrupt(
                f"{self.path} has no column {name!r}; it has {', '.join(batch.schema.names)}"
            )
        return batch.column(position)

    def _variable(self, name: str) -> pa.Array:
        array = self._column(name)
        if not (pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)):
            raise ShardCorrupt(f"{self.path}: {name!r} is {array.type}, not variable in width")
        return array


def map_batch(
    path: str, error: type[FastioError], name: str | None = None
) -> tuple[_native.Mapping, pa.RecordBatch]:
    """Map an Arrow IPC file and view its only record batch.

    Args:
        path: the file.
        error: what to raise when the file is not whole.
        name: how messages call it; None: by its path.

    Returns:
        The mapped file and the batch, whose buffers lie in it.

    Raises:
        SourceNotFound: the file does not exist or cannot be opened.
    """
    called = path if name is None else name
    try:
        mapping = _native.Mapping(path)
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{called} does not exist") from cause
    except OSError as cause:
        raise SourceNotFound(f"{called} cannot be opened: {cause}") from cause
    try:
        reader = pa.ipc.open_file(pa.py_buffer(mapping.data))
        if reader.num_record_batches != 1:
            raise error(f"{called} has {reader.num_record_batches} record batches, expected 1")
        batch = reader.get_batch(0)
        batch.validate()
        _ = batch.schema.names  # decodes them, which may fail too
    except (pa.ArrowException, OSError, UnicodeDecodeError) as cause:
        raise error(
            f"{called} is not a whole Arrow file ({len(mapping.data)} bytes): {cause}; it is "
            "truncated or damaged: copy it again, or pack again"
        ) from cause
    if any(column.null_count for column in batch.columns):
        raise error(f"{called} has nulls, which fastio never writes")
    return mapping, batch


def _view(buffer: pa.Buffer | None, dtype: Any, count: int) -> NDArray[Any]:
    return np.frombuffer(buffer or b"", dtype=dtype, count=count)


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.size)


def _ipc_chunks(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """The bytes of an IPC file with this batch, piece by piece, buffers at multiples of 64."""
    if batch.num_rows < 1:
        raise ValueError("a shard needs at least one row")
    schema_message, metadata, footer = _skeleton(batch)
    head = _MAGIC + b"\0\0" + schema_message
    # The padding belongs to the metadata's length, so the body begins aligned.
    prefix = len(head) + 8 + len(metadata)
    metadata += bytes(-prefix % ALIGNMENT)
    buffers = [buffer for column in batch.columns for buffer in column.buffers()]
    body_bytes = _patch_metadata(metadata, batch, [_size(buffer) for buffer in buffers])
    _patch_footer(footer, len(head), 8 + len(metadata), body_bytes)

    yield memoryview(head + struct.pack("<iI", -1, len(metadata)) + metadata)
    for buffer in buffers:
        if buffer is not None:
            yield memoryview(buffer)
            yield memoryview(bytes(-buffer.size % ALIGNMENT))
    tail = _END_OF_STREAM + footer + struct.pack("<I", len(footer)) + _MAGIC
    yield memoryview(tail)


def _skeleton(batch: pa.RecordBatch) -> tuple[bytes, bytearray, bytearray]:
    """What pyarrow writes around the first row: schema message, batch metadata, footer.

    All numbers in the last two have a fixed width, so those of the whole batch fit in place.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, 1))
    data = sink.getvalue().to_pybytes()
    (footer_bytes,) = struct.unpack_from("<I", data, len(data) - len(_MAGIC) - 4)
    end = len(data) - len(_MAGIC) - 4
    footer = bytearray(data[end - footer_bytes : end])
    offset, length = struct.unpack_from("<qi", footer, _first_block(footer))
    return data[8:offset], bytearray(data[offset + 8 : offset + length]), footer


def _patch_metadata(metadata: bytearray, batch: pa.RecordBatch, sizes: list[int]) -> int:
    """Put the batch's real lengths and aligned offsets in; returns the body's size in bytes."""
    message = _follow(metadata, 0)
    record_batch = _follow(metadata, _slot(metadata, message, 2))
    struct.pack_into("<q", metadata, _slot(metadata, record_batch, 0), batch.num_rows)
    nodes = _follow(metadata, _slot(metadata, record_batch, 1)) + 4
    for column in batch.columns:
        for array in _flatten(column):
            struct.pack_into("<qq", metadata, nodes, len(array), 0)
            nodes += 16
    entries = _follow(metadata, _slot(metadata, record_batch, 2)) + 4
    offset = 0
    for size in sizes:
        struct.pack_into("<qq", metadata, entries, offset, size)
        entries += 16
        offset += size + -size % ALIGNMENT
    struct.pack_into("<q", metadata, _slot(metadata, message, 3), offset)
    return offset


def _patch_footer(footer: bytearray, offset: int, metadata_bytes: int, body_bytes: int) -> None:
    struct.pack_into("<qi4xq", footer, _first_block(footer), offset, metadata_bytes, body_bytes)


def _flatten(array: pa.Array) -> Iterator[pa.Array]:
    """An array and the arrays in it, in the order of IPC's field nodes."""
    yield array
    of_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(is_list(array.type) for is_list in of_lists):
        yield from _flatten(array.values)


# FlatBuffers, as much of it as it takes to find a number: a table begins with the distance back
# to its vtable, which lists where each slot lies in the table (flatbuffers.dev, "Internals").
# Slots below are those of Arrow's format/Message.fbs and format/File.fbs.


def _follow(data: bytearray, position: int) -> int:
    """The position that the reference at `position` points to."""
    return position + int(struct.unpack_from("<I", data, position)[0])


def _slot(data: bytearray, table: int, index: int) -> int:
    """The position of a table's slot, which must be present."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    size, offset = struct.unpack_from("<H", data, vtable)[0], 0
    if 4 + 2 * index < size:
        offset = struct.unpack_from("<H", data, vtable + 4 + 2 * index)[0]
    if not offset:
        raise RuntimeError(f"pyarrow {pa.__version__} wrote IPC metadata without slot {index}")
    return table + int(offset)


def _first_block(footer: bytearray) -> int:
    """Where the footer describes the first record batch: offset i64, length i32, body i64."""
    return _follow(footer, _slot(footer, _follow(footer, 0), 3)) + 4
