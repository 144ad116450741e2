"""The directory at the end of a piece whose rows are objects.

It serves to find objects in a piece that an earlier version of the dataset has left in a cache:

    rows x 16   for each object the XXH3-64 of its name and version, uint64, and its size, int64
    8 bytes     the number of objects, int64
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import numpy as np
import xxhash

from fastio.packed.layout import Range

_OBJECT = np.dtype([("hash", "<u8"), ("length", "<i8")])
_COUNT = struct.Struct("<q")


def directory(ranges: Sequence[Range]) -> bytes:
    """Returns the directory of a block with these objects."""
    objects = np.empty(len(ranges), _OBJECT)
    objects["hash"] = [object_hash(each) for each in ranges]
    objects["length"] = [each.length for each in ranges]
    return objects.tobytes() + _COUNT.pack(len(ranges))


def directory_bytes(objects: int) -> int:
    """Returns the size in bytes of a directory with this number of objects."""
    return objects * _OBJECT.itemsize + _COUNT.size


def object_hash(each: Range) -> int:
    """Returns the hash of an object's name and version."""
    version = "" if each.expect is None else each.expect.key
    return xxhash.xxh3_64_intdigest(os.fsencode(f"{each.name}\0{version}"))


def objects_in(piece: bytes) -> list[tuple[int, bytes]]:
    """Returns the hash and the bytes of each object in a piece; none if it has no directory."""
    if len(piece) < _COUNT.size:
        return []
    (count,) = _COUNT.unpack_from(piece, len(piece) - _COUNT.size)
    begin = len(piece) - directory_bytes(max(0, count))
    if count < 0 or begin < 0:
        return []
    objects = np.frombuffer(piece, _OBJECT, count, begin)
    if (objects["length"] < 0).any() or int(objects["length"].sum()) != begin:
        return []
    parts = split(piece, objects["length"].tolist())
    return list(zip(objects["hash"].tolist(), parts, strict=True))


def split(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Returns consecutive parts of these lengths, from the first byte on."""
    ends = np.cumsum(lengths).tolist()
    return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]
