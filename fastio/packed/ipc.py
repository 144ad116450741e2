"""Arrow IPC files with one record batch: laid out for a memory map, and read without trust.

pyarrow writes IPC files aligned to 8 bytes and has no setting for it. `pieces` therefore takes the
metadata that pyarrow writes for one row, puts the real lengths and offsets in, and lays out the
buffers itself, at multiples of 64 bytes of the file.

`MappedFile` reads what anybody may have made, also somebody who knows how fastio reads. Before
pyarrow makes a batch of it, the metadata is looked at here: one batch of the wanted schema, no
dictionaries, no compression (a few bytes of which become gigabytes), no nulls, and buffers that
follow one another inside of the file. Nothing of that allocates memory by what the file says.
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

ALIGNMENT = 64
_SEAL_BYTES = 8
_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_RECORD_BATCH = 3  # its number among the headers of messages, format/Message.fbs
# What pyarrow raises for files that are damaged or were made to harm it.
_REFUSALS = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, LookupError)


class FileStamp(NamedTuple):
    """Which file a path led to, and when it was written last."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int


def stamp(path: str | os.PathLike[str]) -> FileStamp:
    """The stamp of a file.

    Raises:
        OSError: there is no such file.
    """
    found = os.stat(path)
    return FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Piece(NamedTuple):
    """Some bytes of a file that is written.

    Attributes:
        part: the head (all before the first buffer), a column's buffer or the zeros behind one, a
            payload (the data of a column that has other checks), or the foot (all behind them).
        data: the bytes.
        column: of a payload, its name.
    """

    part: Literal["head", "column", "payload", "foot"]
    data: memoryview
    column: str = ""


def pieces(batch: pa.RecordBatch, payloads: Collection[str] = ()) -> Iterator[Piece]:
    """The bytes of an IPC file with this batch, piece by piece, buffers at multiples of 64.

    Args:
        batch: at least one row; no nulls, no offsets into larger arrays.
        payloads: names of variable-width columns whose data are payloads.
    """
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

    yield Piece("head", memoryview(head + struct.pack("<iI", -1, len(metadata)) + metadata))
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        *others, last = column.buffers()
        for buffer in others:
            yield from _padded(buffer)
        yield from _padded(last, name if name in payloads else "")
    yield Piece("foot", memoryview(_END_OF_STREAM))
    yield Piece("foot", memoryview(footer + struct.pack("<I", len(footer)) + _MAGIC))


def _padded(buffer: pa.Buffer | None, payload: str = "") -> Iterator[Piece]:
    if buffer is not None:
        yield Piece("payload" if payload else "column", memoryview(buffer), payload)
        yield Piece("column", memoryview(bytes(-buffer.size % ALIGNMENT)))


def sealed(batch: pa.RecordBatch) -> list[memoryview]:
    """The bytes of an IPC file with a seal: the XXH3-64 of all its other bytes, before its footer.

    Other readers of Arrow find the footer from the end, and pass over the seal.
    """
    *before, footer = [piece.data for piece in pieces(batch)]
    digest = xxhash.xxh3_64()
    for data in (*before, footer):
        digest.update(data)
    return [*before, memoryview(struct.pack("<Q", digest.intdigest())), footer]


def seal_is_whole(data: memoryview) -> bool:
    """Whether the bytes of a sealed file are those that were written."""
    end = len(data) - len(_MAGIC) - 4
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
    """An Arrow IPC file in memory, of which nothing is believed.

    Args:
        path: the file.
        error: what to raise when it is not a file as fastio writes them.
        name: how messages call it; None: by its path.
        advice: what to do about it when it is damaged.

    Attributes:
        name: as messages call it.
        mapping: the file in memory.
        data: its bytes: uint8 (n,), read-only.
        stamp: which file was mapped.

    Raises:
        SourceNotFound: the file does not exist or cannot be opened.
        SourceChanged: it was replaced meanwhile.
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
            self.stamp = stamp(path)
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

    def wrong(self, what: str, cause: BaseException | None = None) -> FastioError:
        """An error that names the file."""
        error = self._error(f"{self.name} {what}; it is damaged: {self._advice}")
        error.__cause__ = cause
        return error

    def schema(self) -> pa.Schema:
        """The schema that stands in the footer.

        Raises:
            FastioError: there is none.
        """
        try:
            schema = self._reader().schema
            _ = schema.names  # decodes them, which may fail too
        except _REFUSALS as cause:
            raise self._no_file(cause) from cause
        return schema

    def batch(self, schema: pa.Schema | None = None) -> tuple[pa.RecordBatch, int, int]:
        """The only record batch, whose buffers lie in the mapping.

        Args:
            schema: that the file must have, but for metadata; None: any.

        Returns:
            The batch, and where the first of its buffers may begin and the last one end.

        Raises:
            FastioError: it is not as it must be.
        """
        try:
            begin, end = _check_metadata(self.data)
            reader = self._reader()
            found = reader.schema
            if schema is not None and not found.equals(schema, check_metadata=False):
                raise self.wrong(f"has the columns {_columns(found)}, expected {_columns(schema)}")
            batch = reader.get_batch(0)
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

    def offset(self, buffer: pa.Buffer | None) -> int:
        """Where a buffer of the batch begins, in bytes from the file's start."""
        return 0 if buffer is None else int(buffer.address - self.data.ctypes.data)

    def _reader(self) -> Any:
        return pa.ipc.open_file(pa.py_buffer(self.data))

    def _no_file(self, cause: BaseException) -> FastioError:
        return self._error(
            f"{self.name} is not a complete Arrow file ({len(self.data)} bytes): {cause}; it is "
            f"truncated or damaged: {self._advice}"
        )


class _Refused(ValueError):
    """What is wrong with a file, to follow its name."""


def _columns(schema: pa.Schema) -> str:
    text = ", ".join(f"{field.name} {field.type}" for field in schema)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _has_nulls(array: pa.Array) -> bool:
    return bool(_size(array.buffers()[0]))


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.size)


def _check_metadata(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Looks at what a file says of its record batch, before anybody acts on it.

    Returns:
        Where the batch's body begins and ends.

    Raises:
        ValueError: it is not one plain batch inside of the file.
    """
    end = len(data) - len(_MAGIC) - 4
    footer_bytes = 0 if end < 0 else _at("<i", data, end)[0]
    begin = end - footer_bytes
    if footer_bytes <= 0 or begin < 8 or bytes(data[end + 4 :]) != _MAGIC:
        raise _Refused("has no footer at its end")
    footer = data[begin:end].tobytes()
    root = _follow(footer, 0)
    dictionaries = _find(footer, root, 2)
    if dictionaries is not None and _vector(footer, dictionaries)[1]:
        raise _Refused("has dictionaries, which fastio never writes")
    blocks = _find(footer, root, 3)
    count = 0 if blocks is None else _vector(footer, blocks)[1]
    if count != 1:
        raise _Refused(f"has {count} record batches, expected 1")
    offset, length, body_bytes = _at("<qi4xq", footer, _first_block(footer))
    if offset < 8 or length < 8 or body_bytes < 0 or offset + length + body_bytes > begin:
        raise _Refused("has a record batch that does not lie inside the file")
    marker, metadata_bytes = _at("<iI", data, offset)
    if marker != -1 or metadata_bytes + 8 != length or (offset + length) % 8:
        raise _Refused("has a record batch in a layout that fastio never writes")
    metadata = data[offset + 8 : offset + length].tobytes()
    _check_batch(metadata, body_bytes)
    return offset + length, offset + length + body_bytes


def _check_batch(metadata: bytes, body_bytes: int) -> None:
    """Raises ValueError unless a RecordBatch message is plain, its buffers inside of the body."""
    message = _follow(metadata, 0)
    if metadata[_slot(metadata, message, 1)] != _RECORD_BATCH:
        raise _Refused("has a message that is not a record batch where the record batch should be")
    if _at("<q", metadata, _slot(metadata, message, 3))[0] != body_bytes:
        raise _Refused("gives two different sizes for its record batch")
    batch = _follow(metadata, _slot(metadata, message, 2))
    if _find(metadata, batch, 3) is not None:
        raise _Refused("has compressed buffers, which fastio never writes")
    nodes = _pairs(metadata, _slot(metadata, batch, 1))
    if (nodes[:, 0] < 0).any() or nodes[:, 1].any():
        raise _Refused("has nulls, which fastio never writes")
    buffers = _pairs(metadata, _slot(metadata, batch, 2))
    buffers = buffers[buffers[:, 1] != 0]
    begins, sizes = buffers[:, 0], buffers[:, 1]
    if (begins < 0).any() or (sizes < 0).any() or (sizes > body_bytes - begins).any():
        raise _Refused("has columns that do not lie inside the file")
    if (begins % 8).any() or (begins[1:] < begins[:-1] + sizes[:-1]).any():
        raise _Refused("has columns that overlap or are not aligned")


def _pairs(data: bytes, slot: int) -> NDArray[np.int64]:
    """A vector of structs of two int64, which a slot refers to: (n, 2)."""
    begin, count = _vector(data, slot)
    if begin + 16 * count > len(data):
        raise _Refused("has metadata that points outside the file")
    return np.frombuffer(data, "<i8", 2 * count, begin).reshape(-1, 2)


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
    offset, length = _at("<qi", footer, _first_block(footer))
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
# Slots are those of Arrow's format/Message.fbs and format/File.fbs. The data may be anybody's.


def _at(format: str, data: Any, position: int) -> tuple[Any, ...]:
    """Numbers that stand at a position."""
    if not 0 <= position <= len(data) - struct.calcsize(format):
        raise _Refused("has metadata that points outside the file")
    return struct.unpack_from(format, data, position)


def _follow(data: Any, position: int) -> int:
    """The position that the reference at `position` points to."""
    return position + int(_at("<I", data, position)[0])


def _find(data: Any, table: int, index: int) -> int | None:
    """The position of a table's slot, None where the table has none."""
    vtable = table - int(_at("<i", data, table)[0])
    if 4 + 2 * index >= _at("<H", data, vtable)[0]:
        return None
    offset = int(_at("<H", data, vtable + 4 + 2 * index)[0])
    return table + offset if offset else None


def _slot(data: Any, table: int, index: int) -> int:
    """The position of a table's slot, which must be present."""
    found = _find(data, table, index)
    if found is None or found >= len(data):
        raise _Refused(f"has metadata without slot {index}")
    return found


def _vector(data: Any, slot: int) -> tuple[int, int]:
    """Where the elements of the vector begin that a slot refers to, and how many there are."""
    begin = _follow(data, slot)
    return begin + 4, int(_at("<I", data, begin)[0])


def _first_block(footer: Any) -> int:
    """Where the footer describes the first record batch: offset i64, length i32, body i64."""
    return _vector(footer, _slot(footer, _follow(footer, 0), 3))[0]
