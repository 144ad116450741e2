"""The members of one tar, by one pass over its headers (POSIX.1-2001 pax and ustar; GNU; v7).

Bodies are passed over, so that the pass costs a small read for each member and not the whole file.
Which names come out, and where a tar ends, is as Python's tarfile has it; what tarfile keeps silent
about, a damaged or truncated archive, is an error here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from fastio.errors import ShardCorrupt
from fastio.formats.tars.reader import Buffer, TarReader

BLOCK = 512
_REGULAR = b"0\x007"  # file, old file, contiguous file
_NO_BODY = b"123456"  # links, devices, folders, pipes: whatever size their header names
_ZEROS = bytes(BLOCK)
_BLANKS = 8 * ord(" ")
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
# Long names and pax records are read whole: what is larger is no name.
_MOST_EXTRA_BYTES = 16 << 20


class Member(NamedTuple):
    """One file in a tar.

    Attributes:
        name: as the archive has it; bytes that are no UTF-8 are surrogates.
        offset: of its first byte in the tar.
        length: in bytes.
    """

    name: str
    offset: int
    length: int


class Window:
    """A tar read through a window, which moves when something outside of it is asked for.

    Args:
        reader: reads the tar.
        name: of the tar.
        window_bytes: read at a time: small where seeking is cheap, large where a request is slow.
    """

    def __init__(self, reader: TarReader, name: str, window_bytes: int) -> None:
        self.name = name
        self.size = reader.size(name)
        self._reader = reader
        self._window_bytes = window_bytes
        self._data = b""
        self._begin = 0

    def get(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length).

        Raises:
            ShardCorrupt: the tar ends before.
        """
        at = offset - self._begin
        if at < 0 or at + length > len(self._data):
            wanted = min(max(length, self._window_bytes), self.size - offset)
            found: Buffer = self._reader.read(self.name, offset, max(wanted, 0))
            self._data = bytes(found)
            self._begin = offset
            at = 0
            if len(self._data) < length:
                raise _truncated(self.name, f"{offset + length:,} bytes are needed", self.size)
        return self._data[at : at + length]


def read_members(window: Window) -> Iterator[Member]:
    """The files of a tar, in order; folders, links and the like are left out.

    Raises:
        ShardCorrupt: it is no tar, compressed, truncated or damaged, or has sparse files.
    """
    size, tar = window.size, window.name
    offset = 0
    extra = _Extra()
    while offset < size:
        if size - offset < BLOCK:
            if any(window.get(offset, size - offset)):
                raise _no_tar(window, offset)
            return
        header = window.get(offset, BLOCK)
        if header == _ZEROS:
            return
        _check_header(window, header, offset)
        kind = header[156]
        length = _number(header, 124, 136)
        if length < 0:
            raise ShardCorrupt(f"{tar}: the header at byte {offset} has the size {length}")
        begin = offset + BLOCK
        if kind in b"xgLKX":
            extra.take(kind, window, begin, length)
            offset = begin + length + -length % BLOCK
            continue
        name = extra.name or extra.global_name or _name(header)
        if kind == 0 and name.endswith("/"):
            kind = ord("5")  # how the v7 format tells a folder
        length = _body_bytes(kind, length, extra)
        if extra.is_sparse or kind == ord("S"):
            raise ShardCorrupt(
                f"{tar}: {name} is a sparse file, which cannot be read in place; make the tar "
                "without --sparse"
            )
        if begin + length > size:
            raise _truncated(tar, f"{name} ends at byte {begin + length:,}", size)
        if kind in _REGULAR:
            yield Member(name, begin, length)
        extra.forget()
        offset = begin + length + -length % BLOCK
    if offset == 0:
        raise ShardCorrupt(f"{tar} is empty (0 bytes), and no tar")


def _body_bytes(kind: int, length: int, extra: _Extra) -> int:
    """Bytes behind a header: pax's size where it has one, as for files beyond 8 GiB."""
    for given in (extra.global_length, extra.length):
        length = length if given is None else given
    return 0 if kind in _NO_BODY else length


class _Extra:
    """What the records before a header say of the file that it is about."""

    def __init__(self) -> None:
        self.global_name = ""
        self.global_length: int | None = None
        self.forget()

    def forget(self) -> None:
        """After the header that it was for."""
        self.name = ""
        self.length: int | None = None
        self.is_sparse = False

    def take(self, kind: int, window: Window, offset: int, length: int) -> None:
        """Read a GNU long name or the records of a pax header."""
        if length > _MOST_EXTRA_BYTES:
            raise ShardCorrupt(
                f"{window.name}: the header at byte {offset - BLOCK} announces a name or records "
                f"of {length:,} bytes: damaged"
            )
        data = window.get(offset, length)
        if kind == ord("L"):
            # The record that comes first counts, where there are several.
            self.name = self.name or _text(data.split(b"\0", 1)[0])
        elif kind != ord("K"):
            try:
                self._take_records(_pax_records(data), is_global=kind == ord("g"))
            except ValueError as error:
                raise ShardCorrupt(
                    f"{window.name}: the pax header at byte {offset - BLOCK} is damaged: {error}"
                ) from error

    def _take_records(self, records: dict[bytes, bytes], is_global: bool) -> None:
        self.is_sparse |= b"GNU.sparse.major" in records or b"GNU.sparse.map" in records
        self.is_sparse |= b"GNU.sparse.size" in records
        name = _text(records.get(b"path", b"")).rstrip("/")
        length = int(records[b"size"]) if b"size" in records else None
        if length is not None and length < 0:
            raise ValueError(f"its size is {length}")
        if is_global:
            self.global_name = name or self.global_name
            self.global_length = self.global_length if length is None else length
        else:
            self.name = self.name or name
            self.length = self.length if length is None else length


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """The records "LENGTH KEY=VALUE\\n" of a pax header.

    Raises:
        ValueError: it is not made of such records.
    """
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        space = data.index(b" ", at, at + 20)
        end = at + int(data[at:space])
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals or not at < end <= len(data) or data[end - 1] != ord("\n"):
            raise ValueError(f"no record at its byte {at}")
        records[key] = value
        at = end
    return records


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[345] and header[257:263] == b"ustar\0":
        # GNU's format ("ustar  ") has other things in this place.
        return _text(header[345:500].split(b"\0", 1)[0] + b"/" + name)
    return _text(name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _number(header: bytes, begin: int, end: int) -> int:
    """A number as tars write them: octal digits, or base 256 where those would not do."""
    if header[begin] in (0x80, 0xFF):
        number = int.from_bytes(header[begin + 1 : end], "big")
        return number - (256 ** (end - begin - 1) if header[begin] == 0xFF else 0)
    try:
        return int(header[begin:end].split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _check_header(window: Window, header: bytes, offset: int) -> None:
    """Compare a header with its checksum: the sum of its bytes, those of the sum itself blank.

    The low half of Adler-32 is 1 plus that sum modulo 65521, and fifty times faster than `sum`.
    """
    field = header[148:156]
    found = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(field) & 0xFFFF) + _BLANKS
    expected = _number(header, 148, 156)
    if found == expected:
        return
    # Sums beyond 65520, and sums of signed bytes, which some old tars have.
    unsigned = sum(header) - sum(field) + _BLANKS
    high = sum(byte > 127 for byte in header[:148] + header[156:])
    if expected not in (unsigned, unsigned - 256 * high):
        raise _no_tar(window, offset)


def _no_tar(window: Window, offset: int) -> ShardCorrupt:
    if offset:
        return ShardCorrupt(
            f"{window.name} is damaged: there is no tar header at byte {offset:,} of "
            f"{window.size:,}; copy or make it again"
        )
    start = window.get(0, min(8, window.size))
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            return ShardCorrupt(
                f"{window.name} is compressed ({name}), and samples of compressed tars cannot be "
                "read in any order: decompress it"
            )
    return ShardCorrupt(f"{window.name} is no tar")


def _truncated(tar: str, needed: str, size: int) -> ShardCorrupt:
    return ShardCorrupt(f"{tar} is truncated: {needed}, and it has {size:,}; copy or make it again")
