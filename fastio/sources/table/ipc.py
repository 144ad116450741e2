"""Reads the positions and row counts of an Arrow file's record batches from its metadata.

pyarrow reads a whole batch to tell its number of rows. The metadata hold it too. They are
FlatBuffers, of which this module parses the necessary part: a table begins with the distance back
to its vtable, which lists the offset of each slot that is present (flatbuffers.dev, "Internals").
The slots are those of Arrow's format/File.fbs and format/Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAGIC = b"ARROW1"
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY = 1, 2, 3
_TYPE_DICTIONARY, _TYPE_BATCH = 2, 3
_DICTIONARY_DATA = 1
_BATCH_ROWS, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_BLOCK_BYTES, _BUFFER_BYTES = 24, 16
_MARKER = b"\xff\xff\xff\xff"


@dataclass(frozen=True)
class Block:
    """The position of a message in an Arrow file.

    Attributes:
        offset: The first byte.
        metadata: The size of the metadata in bytes; they come first.
        body: The size of the buffers in bytes.
    """

    offset: int
    metadata: int
    body: int


def footer_length(tail: memoryview) -> int:
    """Returns the size of a file's footer in bytes, given the end of the file.

    Raises:
        ValueError: If it is not an Arrow file.
    """
    if len(tail) < len(MAGIC) + 4 or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError("it does not end as an Arrow file does")
    return int(struct.unpack_from("<i", tail, len(tail) - len(MAGIC) - 4)[0])


def blocks(footer: memoryview) -> tuple[list[Block], list[Block]]:
    """Returns the positions of the dictionaries and of the record batches that a footer lists.

    Raises:
        ValueError: If the footer is damaged.
    """
    try:
        table = _follow(footer, 0)
        return _listed(footer, table, _FOOTER_DICTIONARIES), _listed(footer, table, _FOOTER_BATCHES)
    except struct.error as error:
        raise ValueError(f"its footer is damaged: {error}") from None


def batch_rows(metadata: memoryview) -> int:
    """Returns the number of rows of a record batch, given the metadata of its message.

    Raises:
        ValueError: If the metadata are damaged.
    """
    try:
        message = _message(metadata)
        header = _slot(message, _follow(message, 0), _MESSAGE_HEADER)
        rows = None if header is None else _slot(message, _follow(message, header), _BATCH_ROWS)
        count = 0 if rows is None else int(_at(message, "<q", rows))
    except struct.error as error:
        raise ValueError(f"the metadata of a record batch are damaged: {error}") from None
    if count < 0:
        raise ValueError(f"a record batch has {count} rows")
    return count


def body_bytes(metadata: memoryview) -> int:
    """Returns the size of a message's buffers in bytes, given its metadata.

    Raises:
        ValueError: If the metadata are damaged.
    """
    try:
        message = _message(metadata)
        slot = _slot(message, _follow(message, 0), _MESSAGE_BODY)
        count = 0 if slot is None else int(_at(message, "<q", slot))
    except struct.error as error:
        raise ValueError(f"the metadata of a message is damaged: {error}") from None
    if count < 0:
        raise ValueError(f"the size of a message, {count} bytes, is not possible")
    return count


def decompressed_bytes(metadata: memoryview, body: memoryview) -> int:
    """Returns the total decompressed size that the buffers of a message state.

    Args:
        metadata: The metadata of the message.
        body: The buffers of the message.

    Returns:
        The size in bytes; 0 for messages without compressed buffers.

    Raises:
        ValueError: If the metadata are damaged.
    """
    try:
        message = _message(metadata)
        root = _follow(message, 0)
        kind, header = _slot(message, root, _MESSAGE_TYPE), _slot(message, root, _MESSAGE_HEADER)
        if kind is None or header is None:
            return 0
        number, batch = int(_at(message, "<B", kind)), _follow(message, header)
        if number == _TYPE_DICTIONARY:
            data = _slot(message, batch, _DICTIONARY_DATA)
            batch = 0 if data is None else _follow(message, data)
        if number not in (_TYPE_DICTIONARY, _TYPE_BATCH) or not batch:
            return 0
        buffers = _slot(message, batch, _BATCH_BUFFERS)
        if buffers is None or _slot(message, batch, _BATCH_COMPRESSION) is None:
            return 0
        return sum(_decompressed(message, body, _follow(message, buffers)))
    except struct.error as error:
        raise ValueError(f"the metadata of a message is damaged: {error}") from None


def messages(data: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yields the metadata and buffers of each message of an Arrow stream, up to its end.

    Raises:
        ValueError: If a message is damaged or does not lie within the data.
    """
    at = 0
    while at < len(data):
        head = message_head(data[at : at + 8])
        if head is None:
            return
        begin, length = at, sum(head)
        metadata = data[begin : begin + length]
        body = body_bytes(metadata)
        if length + body > len(data) - begin:
            raise ValueError(
                f"a message of {length + body} bytes begins at byte {begin} and ends "
                f"after the end of the data ({len(data)} bytes)"
            )
        yield metadata, data[begin + length : begin + length + body]
        at = begin + length + body


def message_head(data: memoryview) -> tuple[int, int] | None:
    """Returns the sizes of a message's prefix and of its metadata; None at the end of a stream.

    Args:
        data: The first 8 bytes of a message, fewer only at the end of the file.

    Raises:
        ValueError: If the bytes are not the beginning of a message.
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


def _decompressed(message: memoryview, body: memoryview, first: int) -> Iterator[int]:
    """Yields the decompressed size that each compressed buffer states in its first 8 bytes."""
    count = int(_at(message, "<I", first))
    if first + 4 + count * _BUFFER_BYTES > len(message):
        raise struct.error(f"its {count} buffers do not fit into the metadata")
    for place in range(first + 4, first + 4 + count * _BUFFER_BYTES, _BUFFER_BYTES):
        offset, length = struct.unpack_from("<qq", message, place)
        if not length:
            continue
        if offset < 0 or length < 8 or offset + length > len(body):
            raise struct.error(
                f"a buffer of {length} bytes at {offset} exceeds the body of {len(body)} bytes"
            )
        nbytes = int(struct.unpack_from("<q", body, offset)[0])
        if nbytes < -1:
            raise struct.error(
                f"the decompressed size of a buffer, {nbytes} bytes, is not possible"
            )
        yield length - 8 if nbytes == -1 else nbytes  # -1 marks a buffer that is not compressed


def _listed(data: memoryview, table: int, slot: int) -> list[Block]:
    at = _slot(data, table, slot)
    if at is None:
        return []
    first = _follow(data, at)
    (count,) = struct.unpack_from("<I", data, first)
    if first + 4 + count * _BLOCK_BYTES > len(data):
        raise struct.error(f"{count} blocks do not fit into it")
    places: Sequence[int] = range(first + 4, first + 4 + count * _BLOCK_BYTES, _BLOCK_BYTES)
    found = [Block(*struct.unpack_from("<qi4xq", data, place)) for place in places]
    for block in found:
        if min(block.offset, block.metadata, block.body) < 0:
            raise struct.error(f"the footer's entry {block} is not possible")
    return found


def _follow(data: memoryview, position: int) -> int:
    """Returns the position that the reference at `position` points to."""
    return position + int(_at(data, "<I", position))


def _slot(data: memoryview, table: int, index: int) -> int | None:
    """Returns the position of a table's slot; None if it is absent and has its default value."""
    vtable = table - int(_at(data, "<i", table))
    if 4 + 2 * index >= _at(data, "<H", vtable):
        return None
    offset = _at(data, "<H", vtable + 4 + 2 * index)
    return table + int(offset) if offset else None


def _at(data: memoryview, kind: str, position: int) -> int:
    if position < 0:  # struct would count from the end
        raise struct.error(f"there is nothing at {position}")
    return int(struct.unpack_from(kind, data, position)[0])
