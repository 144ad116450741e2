"""Reads files in pieces, to hash them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import xxhash

from fastio.errors import SourceNotFound
from fastio.runtime.files import only_files

_READ_BYTES = 1 << 20

Ranges = Sequence[tuple[int, int]]  # offset, bytes


def checksum(path: str | os.PathLike[str]) -> str:
    """Returns the xxh3_64 of a file as 16 hexadecimal digits; SourceNotFound if it is missing."""
    digest = xxhash.xxh3_64()
    try:
        with open(path, "rb", buffering=0, opener=only_files) as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    except FileNotFoundError as error:
        raise SourceNotFound(f"{os.fspath(path)} does not exist") from error
    return digest.hexdigest()


def mapped_pieces(data: memoryview, ranges: Ranges) -> Iterator[memoryview]:
    """Yields the bytes of ranges of a mapped file, in pieces of at most 1 MiB."""
    for at, nbytes in _cut(ranges):
        yield data[at : at + nbytes]


def file_pieces(path: str, ranges: Ranges, *, past_cache: bool) -> Iterator[memoryview]:
    """Yields what `mapped_pieces` yields, from file reads, which map none of the file's pages.

    If `past_cache`, and the file system supports it, they bypass the page cache (O_DIRECT), whose
    contents then do not change.
    """
    # O_DIRECT reads whole pages to page-aligned memory.
    room = memoryview(mmap.mmap(-1, _READ_BYTES + 2 * mmap.PAGESIZE))
    file = _open_to_read(path, past_cache=past_cache)
    try:
        for at, nbytes in _cut(ranges):
            before = at % mmap.PAGESIZE
            pages = -(-(before + nbytes) // mmap.PAGESIZE)
            found = os.preadv(file, [room[: pages * mmap.PAGESIZE]], at - before)
            yield room[before : min(found, before + nbytes)]
    finally:
        os.close(file)


def _cut(ranges: Ranges) -> Iterator[tuple[int, int]]:
    for offset, nbytes in ranges:
        for at in range(offset, offset + nbytes, _READ_BYTES):
            yield at, min(_READ_BYTES, offset + nbytes - at)


def _open_to_read(path: str, *, past_cache: bool) -> int:
    """Opens a file for reading, without the page cache if asked for and supported."""
    if past_cache and hasattr(os, "O_DIRECT"):
        with suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
