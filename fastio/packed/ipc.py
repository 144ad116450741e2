"""Arrow IPC files with one record batch: laid out for a memory map, and read without trust.

pyarrow writes IPC files aligned to 8 bytes and has no setting for it. `pieces` therefore takes the
metadata that pyarrow writes for one row, replaces the lengths and offsets, and lays out the buffers
itself, at multiples of 64 bytes of the file.

`MappedFile` reads files that anybody may have made, even with the intent to harm. Before pyarrow
creates a batch, the metadata is checked here: one batch of the expected schema, no dictionaries, no
compression (by which a few bytes become gigabytes), no nulls, and buffers that follow one another
inside the file. No check allocates memory of a size that the file states.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import FastioError, SourceChanged, SourceNotFound
from fastio.packed.metadata import (
    BATCH_BUFFERS,
    BATCH_COMPRESSION,
    BATCH_NODES,
    BATCH_ROWS,
    END_BYTES,
    FOOTER_BATCHES,
    FOOTER_DICTIONARIES,
    MAGIC,
    MESSAGE_BODY,
    MESSAGE_HEADER,
    MESSAGE_TYPE,
    TYPE_BATCH,
    at,
    block_places,
    find,
    follow,
    footer_length,
    slot,
    vector,
)
from fastio.schema import DTYPES

ALIGNMENT = 64
_SEAL_BYTES = 8
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
# bool is missing, because Arrow stores Booleans as bits, of which no NumPy array can be a view.
NUMPY_DTYPES = {pa.from_numpy_dtype(name): np.dtype(name) for name in DTYPES if name != "bool"}
# What pyarrow raises for files that are damaged or were made to harm it.
_REFUSALS = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, LookupError)


class FileStamp(NamedTuple):
    """The identity of a file, and when it was last written to."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int


def stamp(path: str | os.PathLike[str]) -> FileStamp:
    """Returns the stamp of a file."""
    return _stamp(os.stat(path))


def _stamp(found: os.stat_result) -> FileStamp:
    return FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Piece(NamedTuple):
    """Consecutive bytes of a file that is written.

    Attributes:
        part: The head (all before the first buffer), a column's buffer or the zeros after one, a
            payload (the data of a column that has checksums of its own), or the foot (the rest).
        data: The bytes.
        column: The name of the column of a payload.
    """

    part: Literal["head", "column", "payload", "foot"]
    data: memoryview
    column: str = ""


def pieces(batch: pa.RecordBatch, payloads: Collection[str] = ()) -> Iterator[Piece]:
    """Yields the bytes of an IPC file with this batch, with buffers at multiples of 64 bytes.

    The batch needs at least one row, no nulls, and no offsets into larger arrays. The data of the
    variable-width columns `payloads` are payloads.
    """
    if batch.num_rows < 1:
        raise ValueError("a shard needs at least one row")
    schema_message, metadata, footer = _skeleton(batch)
    head = MAGIC + b"\0\0" + schema_message
    # The padding belongs to the metadata's length, so the body begins aligned.
    prefix = len(head) + 8 + len(metadata)
    metadata += bytes(-prefix % ALIGNMENT)
    buffers = [buffer for column in batch.columns for buffer in column.buffers()]
    body_bytes = _patch_metadata(metadata, batch, [_size(buffer) for buffer in buffers])
    _patch_footer(footer, len(head), 8 + len(metadata), body_bytes)

    yield Piece("head", memoryview(head + struct.pack("<iI", -1, len(metadata)) + metadata))
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        *others, last = column.buffers()
        for buffer in others:
            yield from _padded(buffer)
        yield from _padded(last, name if name in payloads else "")
    yield Piece("foot", memoryview(_END_OF_STREAM))
    yield Piece("foot", memoryview(footer + struct.pack("<I", len(footer)) + MAGIC))


def _padded(buffer: pa.Buffer | None, payload: str = "") -> Iterator[Piece]:
    if buffer is not None:
        yield Piece("payload" if payload else "column", memoryview(buffer), payload)
        yield Piece("column", memoryview(bytes(-buffer.size % ALIGNMENT)))


def number_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Returns NumPy's dtype for an Arrow type of integers or floats.

    Before pyarrow 26, the method `to_pandas_dtype` of Arrow types fails if pandas is not installed.
    """
    return NUMPY_DTYPES[kind]


def number_array(values: NDArray[Any]) -> pa.Array:
    """Returns numbers as an Arrow array, which shares their memory if they are contiguous.

    `pa.array` imports pandas where it is installed, which takes each process 0.2 seconds and more.

    Raises:
        TypeError: They are Booleans, which Arrow stores as bits, or have another byte order.
    """
    if values.dtype == np.bool_ or not values.dtype.isnative:
        raise TypeError(f"expected numbers of this machine's byte order, got {values.dtype.str}")
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])


def sealed(batch: pa.RecordBatch) -> list[memoryview]:
    """Returns the bytes of an IPC file with a seal: the XXH3-64 of all others, before the footer.

    Other readers of Arrow find the footer from the end, and skip the seal.
    """
    *before, footer = [piece.data for piece in pieces(batch)]
    digest = xxhash.xxh3_64()
    for data in (*before, footer):
        digest.update(data)
    return [*before, memoryview(struct.pack("<Q", digest.intdigest())), footer]


def seal_is_whole(data: memoryview) -> bool:
    """Returns whether the bytes of a sealed file are those that were written."""
    end = len(data) - END_BYTES
    if end < 0:
        return False
    (footer_bytes,) = struct.unpack_from("<I", data, end)
    begin = end - footer_bytes - _SEAL_BYTES
    if begin < 0:
        return False
    digest = xxhash.xxh3_64(data[:begin])
    digest.update(data[begin + _SEAL_BYTES :])
    return bool(struct.unpack_from("<Q", data, begin)[0] == digest.intdigest())


class MappedFile:
    """A memory-mapped Arrow IPC file, which is not trusted.

    Args:
        path, name: The path of the file, and its name in messages; None for the path.
        error: The error to raise if it is not a file that fastio has written.
        advice: What messages advise to do if it is damaged.

    Attributes:
        name: The name in messages.
        mapping, data: The mapping of the file, and its bytes: uint8 (n,), read-only.
        stamp: The identity of the file that was mapped.
        changed_ns: When the file was changed last, before it was mapped. This time cannot be set,
            unlike that of the last write, but links and permissions change it too.

    Raises:
        SourceNotFound: The file does not exist or cannot be opened.
        SourceChanged: It was replaced while it was being opened.
    """

    def __init__(
        self,
        path: str,
        error: type[FastioError],
        name: str | None = None,
        advice: str = "copy it again, or pack again",
    ) -> None:
        self.name = path if name is None else name
        self._error = error
        self._advice = advice
        try:
            found = os.stat(path)
            self.stamp, self.changed_ns = _stamp(found), found.st_ctime_ns
            self.mapping = _native.Mapping(path)
            if stamp(path) != self.stamp:
                raise SourceChanged(
                    f"{self.name} was replaced while it was being opened; open it again"
                )
        except FileNotFoundError as cause:
            if isinstance(cause, FastioError):
                raise
            raise SourceNotFound(f"{self.name} does not exist") from cause
        except OSError as cause:
            raise SourceNotFound(f"{self.name} cannot be opened: {cause}") from cause
        self.data = self.mapping.data

    def wrong(self, what: str) -> FastioError:
        """Returns an error that names the file."""
        return self._error(f"{self.name} {what}; it is damaged: {self._advice}")

    def schema(self) -> pa.Schema:
        """Returns the schema in the footer, or raises the error of the file."""
        try:
            schema = self._reader().schema
            _ = schema.names  # decodes them, which may fail too
        except _REFUSALS as cause:
            raise self._no_file(cause) from cause
        return schema

    def batch(
        self, schema: pa.Schema | None = None, optional: Collection[str] = ()
    ) -> tuple[pa.RecordBatch, int, int]:
        """Returns the only record batch, and where its body begins and ends in the file.

        Its buffers lie in the mapping. If `schema` is given, the columns must be those; columns
        with the names `optional` may be absent.

        Raises:
            FastioError: The file fails a check; see the module.
        """
        try:
            begin, end = _check_metadata(self.data)
            reader = self._reader()
            found = reader.schema
            if schema is not None:
                absent = set(optional) - set(found.names)
                schema = pa.schema([field for field in schema if field.name not in absent])
            if schema is not None and not found.equals(schema, check_metadata=False):
                raise self.wrong(f"has the columns {_columns(found)}, expected {_columns(schema)}")
            batch = reader.get_batch(0)
            # Checks lengths and the sizes of buffers only. Offsets within columns, of which there
            # is one for each row, are checked when a column is first used (`ShardReader`).
            batch.validate()
            _ = batch.schema.names
            if any(_has_nulls(array) for column in batch.columns for array in _flatten(column)):
                raise _Refused("has nulls, which fastio never writes")
        except FastioError:
            raise
        except _Refused as cause:
            raise self.wrong(str(cause)) from None
        except _REFUSALS as cause:
            raise self._no_file(cause) from cause
        return batch, begin, end

    def _reader(self) -> Any:
        return pa.ipc.open_file(pa.py_buffer(self.data))

    def _no_file(self, cause: BaseException) -> FastioError:
        return self._error(
            f"{self.name} is not a complete Arrow file ({len(self.data)} bytes): {cause}; it is "
            f"truncated or damaged: {self._advice}"
        )


class _Refused(ValueError):
    """What is wrong with a file: a text that follows the file's name in messages."""


def _columns(schema: pa.Schema) -> str:
    text = ", ".join(f"{field.name} {field.type}" for field in schema)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _has_nulls(array: pa.Array) -> bool:
    return bool(_size(array.buffers()[0]))


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.size)


def _check_metadata(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Checks what a file says of its batch; returns where its body begins and ends."""
    end = len(data) - END_BYTES
    footer_bytes = footer_length(data.data)
    begin = end - footer_bytes
    if footer_bytes <= 0 or begin < 8:
        raise _Refused("has no footer at its end")
    footer = data[begin:end].tobytes()
    if len(block_places(footer, FOOTER_DICTIONARIES)):
        raise _Refused("has dictionaries, which fastio never writes")
    batches = block_places(footer, FOOTER_BATCHES)
    if len(batches) != 1:
        raise _Refused(f"has {len(batches)} record batches, expected 1")
    offset, length, body_bytes = at(footer, "<qi4xq", batches[0])
    if offset < 8 or length < 8 or body_bytes < 0 or offset + length + body_bytes > begin:
        raise _Refused("has a record batch that does not lie inside the file")
    marker, metadata_bytes = at(data, "<iI", offset)
    if marker != -1 or metadata_bytes + 8 != length or (offset + length) % 8:
        raise _Refused("has a record batch in a layout that fastio never writes")
    metadata = data[offset + 8 : offset + length].tobytes()
    _check_batch(metadata, body_bytes)
    return offset + length, offset + length + body_bytes


def _check_batch(metadata: bytes, body_bytes: int) -> None:
    """Raises ValueError unless a message is a plain batch whose buffers lie inside the body."""
    message = follow(metadata, 0)
    if metadata[slot(metadata, message, MESSAGE_TYPE)] != TYPE_BATCH:
        raise _Refused("has a message that is not a record batch where the record batch should be")
    if at(metadata, "<q", slot(metadata, message, MESSAGE_BODY))[0] != body_bytes:
        raise _Refused("gives two different sizes for its record batch")
    batch = follow(metadata, slot(metadata, message, MESSAGE_HEADER))
    if find(metadata, batch, BATCH_COMPRESSION) is not None:
        raise _Refused("has compressed buffers, which fastio never writes")
    nodes = _pairs(metadata, slot(metadata, batch, BATCH_NODES))
    if (nodes[:, 0] < 0).any() or nodes[:, 1].any():
        raise _Refused("has nulls, which fastio never writes")
    buffers = _pairs(metadata, slot(metadata, batch, BATCH_BUFFERS))
    # Buffers without bytes may have any offset.
    buffers = buffers[buffers[:, 1] != 0]
    begins, sizes = buffers[:, 0], buffers[:, 1]
    if (begins < 0).any() or (sizes < 0).any() or (sizes > body_bytes - begins).any():
        raise _Refused("has columns that do not lie inside the file")
    if (begins % 8).any() or (begins[1:] < begins[:-1] + sizes[:-1]).any():
        raise _Refused("has columns that overlap or are not aligned")


def _pairs(data: bytes, position: int) -> NDArray[np.int64]:
    """Returns a vector of structs of two int64, to which a slot refers: (n, 2)."""
    places = vector(data, position, 16)
    return np.frombuffer(data, "<i8", 2 * len(places), places.start).reshape(-1, 2)


def _skeleton(batch: pa.RecordBatch) -> tuple[bytes, bytearray, bytearray]:
    """Returns what pyarrow writes for the first row: schema message, batch metadata and footer.

    All numbers in the last two have a fixed width, so those of the whole batch fit in their place.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, 1))
    data = sink.getvalue().to_pybytes()
    (footer_bytes,) = struct.unpack_from("<I", data, len(data) - END_BYTES)
    end = len(data) - END_BYTES
    footer = bytearray(data[end - footer_bytes : end])
    offset, length = at(footer, "<qi", block_places(footer, FOOTER_BATCHES)[0])
    return data[8:offset], bytearray(data[offset + 8 : offset + length]), footer


def _patch_metadata(metadata: bytearray, batch: pa.RecordBatch, sizes: list[int]) -> int:
    """Writes the batch's lengths and aligned offsets to its metadata; returns the body's size."""
    message = follow(metadata, 0)
    record_batch = follow(metadata, slot(metadata, message, MESSAGE_HEADER))
    struct.pack_into("<q", metadata, slot(metadata, record_batch, BATCH_ROWS), batch.num_rows)
    nodes = vector(metadata, slot(metadata, record_batch, BATCH_NODES), 16)
    arrays = [array for column in batch.columns for array in _flatten(column)]
    for place, array in zip(nodes, arrays, strict=True):
        struct.pack_into("<qq", metadata, place, len(array), 0)
    entries = vector(metadata, slot(metadata, record_batch, BATCH_BUFFERS), 16)
    offset = 0
    for place, size in zip(entries, sizes, strict=True):
        struct.pack_into("<qq", metadata, place, offset, size)
        offset += size + -size % ALIGNMENT
    struct.pack_into("<q", metadata, slot(metadata, message, MESSAGE_BODY), offset)
    return offset


def _patch_footer(footer: bytearray, offset: int, metadata_bytes: int, body_bytes: int) -> None:
    (place,) = block_places(footer, FOOTER_BATCHES)
    struct.pack_into("<qi4xq", footer, place, offset, metadata_bytes, body_bytes)


def _flatten(array: pa.Array) -> Iterator[pa.Array]:
    """Yields an array and the arrays in it, in the order of IPC's field nodes."""
    yield array
    of_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(is_list(array.type) for is_list in of_lists):
        yield from _flatten(array.values)


def hash_columns(manifest: pa.RecordBatch) -> str:
    """Returns the xxh3_64 of the values of all columns except `name`, in order.

    Integers are hashed as little-endian int64. Strings are hashed as their offsets (little-endian
    int64, one more than rows), followed by their bytes.
    """
    digest = xxhash.xxh3_64()
    for name, column in zip(manifest.schema.names, manifest.columns, strict=True):
        if name == "name":
            continue
        if not pa.types.is_large_string(column.type):
            digest.update(np.from_dlpack(column).data)
            continue
        _, offsets, data = column.buffers()
        offset_bytes = 8 * (len(column) + 1)
        digest.update(memoryview(offsets)[:offset_bytes])
        # The buffer may be longer than the texts in it.
        end = int.from_bytes(memoryview(offsets)[offset_bytes - 8 : offset_bytes], "little")
        digest.update(memoryview(data or b"")[:end])
    return digest.hexdigest()
