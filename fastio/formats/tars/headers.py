"""The members of one tar, by one pass over its headers (POSIX.1-2001 pax and ustar; GNU; v7).

Bodies are passed over, so that the pass costs a small read for each member and not the whole file.
Which names come out, and where a tar ends, is as Python's tarfile has it; what tarfile keeps silent
about, a damaged or truncated archive, is an error here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from fastio.errors import ShardCorrupt
from fastio.formats.tars.reader import Buffer, TarReader

BLOCK = 512
T = TypeVar("T")
# Of a ustar header (POSIX.1-2001, "pax"): name, size, checksum, type, magic, prefix.
_HEADER = struct.Struct("<100s24x12s12x8sB100x6s82x155s12x")
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
_ATTEMPTS = 6  # to read what comes damaged, each time in another way
_END_BYTES = 1 << 20  # of the zeros at the end, read at a time


# One file in a tar: its name, as the archive has it (bytes that are no UTF-8 are surrogates), and
# where it lies: offset and length in bytes. A plain tuple, since there are many.
Member = tuple[str, int, int]


class Window:
    """A tar read through a window, which moves when something outside of it is asked for.

    Args:
        reader: reads the tar.
        name: of the tar.
        window_bytes: read at a time: small where seeking is cheap, large where a request is slow.

    Attributes:
        end: the byte behind the last member, once `read_members` has passed over all of them.
    """

    def __init__(self, reader: TarReader, name: str, window_bytes: int) -> None:
        self.name = name
        self.size = reader.size(name)
        self.end = 0
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

    def settled(self, offset: int, length: int, check: Callable[[bytes, int], T]) -> T:
        """What a check makes of some bytes, which are read again if it finds them damaged.

        What comes damaged may have become so on the way; what comes so twice is damaged where it
        lies.

        Args:
            offset, length: of the bytes.
            check: gets them and their offset; raises ShardCorrupt for damaged ones.

        Raises:
            ShardCorrupt: from `check`, or the tar ends before.
        """
        data = self.get(offset, length)
        for _ in range(_ATTEMPTS - 1):
            try:
                return check(data, offset)
            except ShardCorrupt:
                self._begin, self._data = offset, b""
                fresh = self.get(offset, length)
                if fresh == data:
                    raise
                self._reader.note_refetch()
                data = fresh
        return check(data, offset)


def read_members(window: Window) -> Iterator[Member]:
    """The files of a tar, in order; folders, links and the like are left out.

    Raises:
        ShardCorrupt: it is no tar, compressed, truncated or damaged, or has sparse files.
    """
    size, tar = window.size, window.name
    checked = partial(_checked_header, window)
    offset = 0
    extra = _Extra()
    while offset + BLOCK <= size:
        header = window.settled(offset, BLOCK, checked)
        short_name, octal, _, kind, magic, prefix = _HEADER.unpack(header)
        if not kind and header == _ZEROS:
            window.end = offset
            return
        begin = offset + BLOCK
        length = _size(octal, window, offset)
        if kind in b"xgLKX":
            extra.take(kind, window, begin, length)
            offset = begin + length + -length % BLOCK
            continue
        if prefix[0] and magic == b"ustar\0":  # GNU's "ustar  " has other things in this place
            short_name = prefix.partition(b"\0")[0] + b"/" + short_name
        name = short_name.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if extra.is_any:
            name, length = extra.applied(tar, name, length)
        if kind in _NO_BODY or (not kind and name.endswith("/")):  # the latter is a folder of v7's
            length = 0
        elif kind == ord("S"):
            raise _sparse(tar, name)
        elif kind in _REGULAR:
            if begin + length > size:
                raise _truncated(tar, f"{name} ends at byte {begin + length:,}", size)
            yield name, begin, length
        offset = begin + length + -length % BLOCK
    if offset < size and any(window.get(offset, size - offset)):
        if not offset:
            raise _no_tar(window, offset)
        raise _truncated(tar, f"its last header ends at byte {offset + BLOCK:,}", size)
    if offset > size + BLOCK:
        raise _truncated(tar, f"its last part ends at byte {offset:,}", size)
    if not size:
        raise ShardCorrupt(f"{tar} is no tar: it is empty (0 bytes)")
    window.end = offset


def check_end(window: Window) -> None:
    """Sees to it that a tar, all of whose members were read, ends as tars do.

    Readers do without: a tar that was cut between two members has fewer for them, and what stands
    behind the end is not there.

    Raises:
        ShardCorrupt: the two blocks of zeros are missing, or something stands behind them.
    """
    behind = window.end + 2 * BLOCK
    if behind > window.size:
        needed = f"its end, two blocks of zeros, belongs at byte {window.end:,}"
        raise _truncated(window.name, needed, window.size)
    for begin in (window.end, *range(behind, window.size, _END_BYTES)):
        length = 2 * BLOCK if begin == window.end else min(_END_BYTES, window.size - begin)
        if window.get(begin, length).strip(b"\0"):
            raise ShardCorrupt(
                f"{window.name} goes on behind its end at byte {window.end:,}, which readers do "
                "not see: are these several tars in one?"
            )


class _Extra:
    """What the records before a header say of the file that it is about."""

    def __init__(self) -> None:
        self._global_name = ""
        self._global_length: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._name = ""
        self._length: int | None = None
        self._is_sparse = False
        self.is_any = bool(self._global_name) or self._global_length is not None

    def applied(self, tar: str, name: str, length: int) -> tuple[str, int]:
        """The name and size of the file that the header behind the records is about."""
        name = self._name or self._global_name or name
        for given in (self._global_length, self._length):  # pax's size, as beyond 8 GiB
            length = length if given is None else given
        if self._is_sparse:
            raise _sparse(tar, name)
        self._forget()
        return name, length

    def take(self, kind: int, window: Window, offset: int, length: int) -> None:
        """Read a GNU long name or the records of a pax header."""
        if length > _MOST_EXTRA_BYTES:
            raise ShardCorrupt(
                f"{window.name}: the header at byte {offset - BLOCK} announces a name or records "
                f"of {length:,} bytes: damaged"
            )
        self.is_any = True
        if kind == ord("L"):
            # The record that comes first counts, where there are several.
            self._name = self._name or _text(window.get(offset, length).split(b"\0", 1)[0])
        elif kind != ord("K"):

            def take(data: bytes, offset: int) -> None:
                try:
                    self._take_records(_pax_records(data), is_global=kind == ord("g"))
                except ValueError as error:
                    raise ShardCorrupt(
                        f"{window.name}: the pax header at byte {offset - BLOCK} is damaged: "
                        f"{error}"
                    ) from error

            window.settled(offset, length, take)

    def _take_records(self, records: dict[bytes, bytes], is_global: bool) -> None:
        self._is_sparse |= b"GNU.sparse.major" in records or b"GNU.sparse.map" in records
        self._is_sparse |= b"GNU.sparse.size" in records
        name = _text(records.get(b"path", b"")).rstrip("/")
        length = int(records[b"size"]) if b"size" in records else None
        if length is not None and length < 0:
            raise ValueError(f"its size is {length}")
        if is_global:
            self._global_name = name or self._global_name
            self._global_length = self._global_length if length is None else length
        else:
            self._name = self._name or name
            self._length = self._length if length is None else length


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


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _size(field: bytes, window: Window, offset: int) -> int:
    """The size of a header, of which most are eleven octal digits."""
    if field[11] in b" \0" and field[:11].isdigit():
        try:
            return int(field, 8) if field[11] == ord(" ") else int(field[:11], 8)
        except ValueError:
            pass
    length = _number(field)
    if length < 0:
        raise ShardCorrupt(f"{window.name}: the header at byte {offset:,} has an impossible size")
    return length


def _number(field: bytes) -> int:
    """A number as tars write them: octal digits, or base 256 where those would not do.

    -1 where it is none.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _checked_header(window: Window, header: bytes, offset: int) -> bytes:
    """A header that agrees with its checksum: the sum of its bytes, those of the sum itself blank.

    Blocks of zeros have none. Raises ShardCorrupt for others.

    The low half of Adler-32 is 1 plus that sum modulo 65521, and fifty times faster than `sum`.
    """
    if header == _ZEROS:
        return header
    field = header[148:156]
    found = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(field) & 0xFFFF) + _BLANKS
    if b"%06o\0 " % found == field:  # as most write it
        return header
    expected = _number(field)
    if found == expected:
        return header
    # Sums beyond 65520, and sums of signed bytes, which some old tars have.
    unsigned = sum(header) - sum(field) + _BLANKS
    high = sum(byte > 127 for byte in header[:148] + header[156:])
    if expected not in (unsigned, unsigned - 256 * high):
        raise _no_tar(window, offset)
    return header


def _sparse(tar: str, name: str) -> ShardCorrupt:
    return ShardCorrupt(
        f"{tar}: {name} is a sparse file, which cannot be read in place; make the tar without "
        "--sparse"
    )


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
