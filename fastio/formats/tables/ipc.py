"""Where the record batches of an Arrow file lie, and how many rows they have.

pyarrow reads a batch to tell its rows. Its metadata tell them too: they are FlatBuffers, of which
this reads as much as it takes. A table begins with the distance back to its vtable, which lists
where each slot lies in the table, if it is there (flatbuffers.dev, "Internals"). Slots are those of
Arrow's format/File.fbs and format/Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"ARROW1"
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_HEADER, _BATCH_ROWS = 2, 0
_BLOCK_BYTES = 24


@dataclass(frozen=True)
class Block:
    """A message of an Arrow file.

    Attributes:
        offset: first byte.
        metadata: bytes of its metadata, which come first.
        body: bytes of its buffers.
    """

    offset: int
    metadata: int
    body: int


def footer_length(tail: memoryview) -> int:
    """Bytes of a file's footer, by the file's last ones.

    Raises:
        ValueError: it is no Arrow file.
    """
    if len(tail) < len(MAGIC) + 4 or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError("it does not end as an Arrow file does")
    return int(struct.unpack_from("<i", tail, len(tail) - len(MAGIC) - 4)[0])


def blocks(footer: memoryview) -> tuple[list[Block], list[Block]]:
    """The dictionaries and the record batches that a footer lists.

    Raises:
        ValueError: it is damaged.
    """
    try:
        table = _follow(footer, 0)
        return _listed(footer, table, _FOOTER_DICTIONARIES), _listed(footer, table, _FOOTER_BATCHES)
    except struct.error as error:
        raise ValueError(f"its footer is damaged: {error}") from None


def batch_rows(metadata: memoryview) -> int:
    """The rows of a record batch, by its message's metadata.

    Raises:
        ValueError: they are damaged.
    """
    try:
        # Behind a marker and a length; files before Arrow 0.15 have the length only.
        start = 8 if bytes(metadata[:4]) == b"\xff\xff\xff\xff" else 4
        message = metadata[start:]
        header = _slot(message, _follow(message, 0), _MESSAGE_HEADER)
        rows = None if header is None else _slot(message, _follow(message, header), _BATCH_ROWS)
        count = 0 if rows is None else int(struct.unpack_from("<q", message, rows)[0])
    except struct.error as error:
        raise ValueError(f"the metadata of a record batch are damaged: {error}") from None
    if count < 0:
        raise ValueError(f"a record batch has {count} rows")
    return count


def _listed(data: memoryview, table: int, slot: int) -> list[Block]:
    at = _slot(data, table, slot)
    if at is None:
        return []
    first = _follow(data, at)
    (count,) = struct.unpack_from("<I", data, first)
    if first + 4 + count * _BLOCK_BYTES > len(data):
        raise struct.error(f"{count} blocks do not fit into it")
    places: Sequence[int] = range(first + 4, first + 4 + count * _BLOCK_BYTES, _BLOCK_BYTES)
    return [Block(*struct.unpack_from("<qi4xq", data, place)) for place in places]


def _follow(data: memoryview, position: int) -> int:
    """The position that the reference at `position` points to."""
    return position + int(_at(data, "<I", position))


def _slot(data: memoryview, table: int, index: int) -> int | None:
    """The position of a table's slot; None where it is not there, and has its default."""
    vtable = table - int(_at(data, "<i", table))
    if 4 + 2 * index >= _at(data, "<H", vtable):
        return None
    offset = _at(data, "<H", vtable + 4 + 2 * index)
    return table + int(offset) if offset else None


def _at(data: memoryview, kind: str, position: int) -> int:
    if position < 0:  # which would count from the end
        raise struct.error(f"there is nothing at {position}")
    return int(struct.unpack_from(kind, data, position)[0])
