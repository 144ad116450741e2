"""Reads the metadata of Arrow files and streams, which anybody may have written.

The metadata are FlatBuffers, of which this module parses the necessary part: a table begins with
the distance back to its vtable, which lists the offset of each slot that is present
(flatbuffers.dev, "Internals"). The slots are those of Arrow's format/File.fbs and
format/Message.fbs. pyarrow has no functions for this: it reads a whole record batch to tell its
number of rows, and allocates what compressed buffers state before anything can be checked.

Every function raises ValueError if the metadata are damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"ARROW1"
END_BYTES = len(MAGIC) + 4  # at the end of a file: the size of the footer, and the magic number
FOOTER_DICTIONARIES, FOOTER_BATCHES = 2, 3
MESSAGE_TYPE, MESSAGE_HEADER, MESSAGE_BODY = 1, 2, 3
TYPE_DICTIONARY, TYPE_BATCH = 2, 3
BATCH_ROWS, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION = 0, 1, 2, 3
_DICTIONARY_DATA = 1
_BLOCK = "<qi4xq"
_PAIR = "<qq"
_MARKER = b"\xff\xff\xff\xff"


@dataclass(frozen=True)
class Block:
    """The position of a message in an Arrow file: first byte, and sizes of metadata and body."""

    offset: int
    metadata: int
    body: int


# --- Files ----------------------------------------------------------------------------------------


def footer_length(tail: memoryview) -> int:
    """Returns the size of a file's footer in bytes, given the end of the file."""
    if len(tail) < END_BYTES or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError("it does not end as an Arrow file does")
    return int(struct.unpack_from("<i", tail, len(tail) - END_BYTES)[0])


def blocks(footer: Any, slot: int) -> Sequence[Block]:
    """Returns the positions that a footer lists in FOOTER_DICTIONARIES or FOOTER_BATCHES."""
    found = [Block(*at(footer, _BLOCK, place)) for place in block_places(footer, slot)]
    for block in found:
        if min(block.offset, block.metadata, block.body) < 0:
            raise ValueError(f"the footer's entry {block} is not possible")
    return found


def block_places(footer: Any, slot: int) -> range:
    """Returns where a footer describes its blocks: offset i64, metadata i32, body i64."""
    listed = find(footer, follow(footer, 0), slot)
    return range(0) if listed is None else vector(footer, listed, struct.calcsize(_BLOCK))


# --- Messages -------------------------------------------------------------------------------------


def batch_rows(metadata: memoryview) -> int:
    """Returns the number of rows of a record batch, given the metadata of its message."""
    message, batch = _batch(metadata)
    rows = None if batch is None else find(message, batch, BATCH_ROWS)
    count = 0 if rows is None else int(at(message, "<q", rows)[0])
    if count < 0:
        raise ValueError(f"a record batch has {count} rows")
    return count


def body_bytes(metadata: memoryview) -> int:
    """Returns the size of a message's buffers in bytes, given its metadata."""
    message = _message(metadata)
    slot = find(message, follow(message, 0), MESSAGE_BODY)
    count = 0 if slot is None else int(at(message, "<q", slot)[0])
    if count < 0:
        raise ValueError(f"the size of a message, {count} bytes, is not possible")
    return count


def buffer_places(metadata: memoryview) -> memoryview:
    """Returns a record batch's list of buffers, offset i64 and length i64, as it is stored."""
    message = _message(metadata)
    batch = follow(message, slot(message, follow(message, 0), MESSAGE_HEADER))
    listed = find(message, batch, BATCH_BUFFERS)
    places = range(0) if listed is None else vector(message, listed, struct.calcsize(_PAIR))
    return message[places.start : places.stop]


def is_compressed(metadata: memoryview) -> bool:
    """Returns whether the buffers of a record batch are compressed, given its metadata."""
    message, batch = _batch(metadata)
    return batch is not None and find(message, batch, BATCH_COMPRESSION) is not None


def decompressed_bytes(metadata: memoryview, body: memoryview) -> int:
    """Returns the decompressed size that the buffers of a message state; 0 if not compressed."""
    message = _message(metadata)
    root = follow(message, 0)
    kind, header = find(message, root, MESSAGE_TYPE), find(message, root, MESSAGE_HEADER)
    if kind is None or header is None:
        return 0
    number, batch = int(at(message, "<B", kind)[0]), follow(message, header)
    if number == TYPE_DICTIONARY:
        data = find(message, batch, _DICTIONARY_DATA)
        batch = 0 if data is None else follow(message, data)
    if number not in (TYPE_DICTIONARY, TYPE_BATCH) or not batch:
        return 0
    buffers = find(message, batch, BATCH_BUFFERS)
    if buffers is None or find(message, batch, BATCH_COMPRESSION) is None:
        return 0
    places = vector(message, buffers, struct.calcsize(_PAIR))
    return sum(_decompressed(body, *at(message, _PAIR, place)) for place in places)


def _decompressed(body: memoryview, offset: int, length: int) -> int:
    """Returns the decompressed size that a compressed buffer states in its first 8 bytes."""
    if not length:
        return 0
    if offset < 0 or length < 8 or offset + length > len(body):
        raise ValueError(
            f"a buffer of {length} bytes at {offset} exceeds the body of {len(body)} bytes"
        )
    nbytes = int(struct.unpack_from("<q", body, offset)[0])
    if nbytes < -1:
        raise ValueError(f"the decompressed size of a buffer, {nbytes} bytes, is not possible")
    return length - 8 if nbytes == -1 else nbytes  # -1 marks a buffer that is not compressed


def message_head(data: memoryview) -> tuple[int, int] | None:
    """Returns the sizes of a message's prefix and of its metadata; None at the end of a stream.

    The data are the first 8 bytes of a message, fewer only at the end of the file.
    """
    # The prefix is a marker and a length; files written before Arrow 0.15 have only the length.
    start = 8 if data[:4] == _MARKER else 4
    if len(data) < start:
        return None
    length = int(struct.unpack_from("<i", data, start - 4)[0])
    if length < 0:
        raise ValueError(f"the size of a message's metadata, {length} bytes, is not possible")
    return (start, length) if length else None


def _message(metadata: memoryview) -> memoryview:
    """Returns the FlatBuffer in a message's metadata."""
    return metadata[8 if metadata[:4] == _MARKER else 4 :]


def _batch(metadata: memoryview) -> tuple[memoryview, int | None]:
    """Returns a message's FlatBuffer, and the position of its record batch or None."""
    message = _message(metadata)
    header = find(message, follow(message, 0), MESSAGE_HEADER)
    return message, None if header is None else follow(message, header)


# --- FlatBuffers ----------------------------------------------------------------------------------


def at(data: Any, numbers: str, position: int) -> tuple[Any, ...]:
    """Returns the numbers at a position, in a format of `struct`."""
    if not 0 <= position <= len(data) - struct.calcsize(numbers):
        raise ValueError(
            f"its metadata is damaged: it refers to byte {position} of {len(data)} bytes"
        )
    return struct.unpack_from(numbers, data, position)


def follow(data: Any, position: int) -> int:
    """Returns the position that the reference at `position` points to."""
    return position + int(at(data, "<I", position)[0])


def find(data: Any, table: int, index: int) -> int | None:
    """Returns the position of a table's slot; None if it is absent and has its default value."""
    vtable = table - int(at(data, "<i", table)[0])
    if 4 + 2 * index >= at(data, "<H", vtable)[0]:
        return None
    offset = int(at(data, "<H", vtable + 4 + 2 * index)[0])
    return table + offset if offset else None


def slot(data: Any, table: int, index: int) -> int:
    """Returns the position of a table's slot, which must be present."""
    found = find(data, table, index)
    if found is None or found >= len(data):
        raise ValueError(f"its metadata is damaged: slot {index} of a table is missing")
    return found


def vector(data: Any, position: int, item_bytes: int) -> range:
    """Returns the positions of the elements of the vector that is referred to at `position`."""
    begin = follow(data, position)
    count = int(at(data, "<I", begin)[0])
    if begin + 4 + count * item_bytes > len(data):
        raise ValueError(f"its metadata is damaged: a list of {count} elements does not fit")
    return range(begin + 4, begin + 4 + count * item_bytes, item_bytes)
