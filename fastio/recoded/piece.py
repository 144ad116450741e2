"""The piece of a block of rows: a directory of its images, and then their block records.

    8 bytes     "fastioR1"
    8 bytes     XXH3-64 of the source's key, the next 16 bytes and the directory, little-endian
    8 bytes     number of the block, int64
    8 bytes     number of rows, int64
    rows x 72   the directory, as DIRECTORY describes it
    ...         the records

The hash detects a directory that is damaged or belongs to another block. Each record has checksums
of its own.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

_MAGIC = b"fastioR1"
_HEAD = struct.Struct("<8sQqq")

# For each row: where its record lies in the piece (length 0: the image was not recoded), the
# CRC-32C of the record, the image's size and EXIF orientation, and which original was recoded: its
# stamp (`Originals.stamps`), and its offset and length in the file (`ImageReads`).
DIRECTORY = np.dtype(
    [
        ("offset", "<i8"),
        ("length", "<i8"),
        ("crc32c", "<u4"),
        ("height", "<i4"),
        ("width", "<i4"),
        ("orientation", "<i4"),
        ("stamp", "<i8", 3),
        ("at", "<i8"),
        ("nbytes", "<i8"),
    ]
)
Directory = NDArray[Any]  # of DIRECTORY, (rows,)


def head_bytes(rows: int) -> int:
    """Returns the size in bytes of the header and directory of a block with `rows` rows."""
    return _HEAD.size + rows * DIRECTORY.itemsize


def head(key: str, number: int, directory: Directory) -> bytes:
    """Returns the header and directory of a block, which precede its records.

    Args:
        key: The key of the cache's source.
        number: The number of the block.
        directory: Its directory.
    """
    digest = _digest(key, number, directory.tobytes())
    return _HEAD.pack(_MAGIC, digest, number, len(directory)) + directory.tobytes()


def read_head(data: bytes, key: str, number: int, rows: int, size: int) -> Directory | None:
    """Returns the directory of a piece of `size` bytes; None if it is damaged or has other rows.

    Args:
        data: The first `head_bytes(rows)` bytes of the piece.
        key, number: As for `head`.
        rows: The number of rows of the block.
        size: The size of the piece in bytes.
    """
    if len(data) != head_bytes(rows):
        return None
    magic, digest, there, count = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if (magic, there, count) != (_MAGIC, number, rows) or digest != _digest(key, number, body):
        return None
    directory = np.frombuffer(body, DIRECTORY)
    ends = directory["offset"] + directory["length"]
    inside = (directory["length"] >= 0) & (directory["offset"] >= 0) & (ends <= size)
    return directory if inside.all() else None


def _digest(key: str, number: int, directory: bytes) -> int:
    digest = xxhash.xxh3_64(key.encode())
    digest.update(struct.pack("<qq", number, len(directory)))
    digest.update(directory)
    return digest.intdigest()
