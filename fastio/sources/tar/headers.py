"""Reads the members of a tar in one pass over its headers (POSIX.1-2001 pax and ustar; GNU; v7).

File contents are skipped, so the pass takes one small read for each member. Names, and the end of
the tar, are interpreted as by Python's tarfile. A damaged or truncated archive, which tarfile
accepts silently, is an error here.
"""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fastio.errors import ShardCorrupt
from fastio.sources.tar.reader import Buffer, TarReader
from fastio.sources.tar.values import MOST_DIGITS, is_integer, parse_integer
from fastio.store import FETCHES

BLOCK = 512
T = TypeVar("T")
# The fields of a ustar header (POSIX.1-2001, "pax"): name, size, checksum, type, magic, prefix.
_HEADER = struct.Struct("<100s24x12s12x8sB100x6s82x155s12x")
_REGULAR = b"0\x007"  # file, old file, contiguous file
_NO_BODY = b"123456"  # links, devices, folders, pipes: they have no body, whatever their size field
_ZEROS = bytes(BLOCK)
_BLANKS = 8 * ord(" ")
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
# Long names and pax records are read whole, so their size is limited.
_MOST_EXTRA_BYTES = 16 << 20
_END_BYTES = 1 << 20  # of the zeros at the end, read at a time


# A file in a tar: its name as in the archive (bytes that are not UTF-8 become surrogates), and its
# offset and length in bytes. A plain tuple, because there may be millions.
Member = tuple[str, int, int]


class Window:
    """A view of a tar through a buffer that is refilled when other bytes are requested.

    Args:
        reader: Reads the tar.
        name: The name of the tar.

    Attributes:
        name: The path or URL of the tar, for messages.
        size: The size of the tar in bytes.
        end: The byte after the last member, once `read_members` has reached it.
    """

    def __init__(self, reader: TarReader, name: str) -> None:
        self.name = reader.where(name)
        self.size = reader.size(name)
        self.end = 0
        self._name = name
        self._reader = reader
        self._window_bytes = reader.window_bytes
        self._data = b""
        self._begin = 0

    def get(self, offset: int, length: int) -> bytes:
        """Returns the bytes [offset, offset + length), or ShardCorrupt if the tar is shorter."""
        at = offset - self._begin
        if at < 0 or at + length > len(self._data):
            wanted = min(max(length, self._window_bytes), self.size - offset)
            found: Buffer = self._reader.read(self._name, offset, max(wanted, 0))
            self._data = bytes(found)
            self._begin = offset
            at = 0
            if len(self._data) < length:
                raise _truncated(self.name, f"{offset + length:,} bytes are needed", self.size)
        return self._data[at : at + length]

    def settled(self, offset: int, length: int, check: Callable[[bytes, int], T]) -> T:
        """Returns the result of a check on some bytes, which are read again if they are damaged.

        If a second read returns the same bytes, they are damaged at the source, not on the way.
        `check` gets the bytes and their offset, and raises ShardCorrupt if they are damaged.
        """
        data = self.get(offset, length)
        for _ in range(FETCHES - 1):
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
    """Yields the files of a tar in order. Folders, links and other members are skipped.

    Raises:
        ShardCorrupt: If it is not a tar, is compressed, truncated or damaged, or has sparse files.
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
        if prefix[0] and magic == b"ustar\0":  # in GNU's "ustar  " this field has another meaning
            short_name = prefix.partition(b"\0")[0] + b"/" + short_name
        name = short_name.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if extra.is_any:
            name, length = extra.applied(tar, name, length)
        if kind in _NO_BODY or (not kind and name.endswith("/")):  # v7 writes folders like this
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
        raise ShardCorrupt(f"{tar} is not a tar: it is empty (0 bytes)")
    window.end = offset


def check_end(window: Window) -> None:
    """Checks that a tar ends properly. Call it after all members were read.

    Readers accept a tar without this check: one that was cut between two members just has fewer
    of them, and data after the end is ignored.

    Raises:
        ShardCorrupt: If the two blocks of zeros are missing, or if data follows them.
    """
    behind = window.end + 2 * BLOCK
    if behind > window.size:
        needed = f"its end, two blocks of zeros, belongs at byte {window.end:,}"
        raise _truncated(window.name, needed, window.size)
    for begin in (window.end, *range(behind, window.size, _END_BYTES)):
        length = 2 * BLOCK if begin == window.end else min(_END_BYTES, window.size - begin)
        if window.get(begin, length).strip(b"\0"):
            raise ShardCorrupt(
                f"{window.name} continues after its end marker at byte {window.end:,}, which "
                "readers would ignore: it may be several concatenated tars"
            )


class _Extra:
    """The extended headers that apply to the next file, and the global ones."""

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
        """Returns the name and size of a file, with the extended headers applied."""
        name = self._name or self._global_name or name
        for given in (self._global_length, self._length):  # pax has sizes of 8 GiB and more
            length = length if given is None else given
        if self._is_sparse:
            raise _sparse(tar, name)
        self._forget()
        return name, length

    def take(self, kind: int, window: Window, offset: int, length: int) -> None:
        """Reads a GNU long name or the records of a pax header."""
        if length > _MOST_EXTRA_BYTES:
            raise ShardCorrupt(
                f"{window.name}: the header at byte {offset - BLOCK} has a name or records of "
                f"{length:,} bytes, which is impossible: the tar is damaged"
            )
        self.is_any = True
        if kind == ord("L"):
            # If there are several, the first one applies.
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
    r"""Returns the records "LENGTH KEY=VALUE\n" of a pax header, or raises ValueError."""
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
    """Returns the size in a header; usually eleven octal digits."""
    # A fast path for the usual form, without the copies of `_number`: there may be millions of
    # files.
    if field[11] in b" \0" and field[:11].isdigit():
        try:
            return int(field, 8) if field[11] == ord(" ") else int(field[:11], 8)
        except ValueError:  # digits 8 and 9
            pass
    length = _number(field)
    if length < 0:
        raise ShardCorrupt(f"{window.name}: the header at byte {offset:,} has an impossible size")
    return length


def _number(field: bytes) -> int:
    """Returns a number from a header field, octal or base 256; -1 if it is not a number."""
    if field[0] == 0x80:  # GNU tar's form of sizes from 8 GiB on
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _checked_header(window: Window, header: bytes, offset: int) -> bytes:
    """Returns a header if its checksum is right, or raises ShardCorrupt.

    The checksum is the sum of the header's bytes with that field blank. The low half of Adler-32 is
    1 plus this sum modulo 65521, and 50 times faster than `sum`. Blocks of zeros have no checksum.
    """
    if header == _ZEROS:
        return header
    field = header[148:156]
    found = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(field) & 0xFFFF) + _BLANKS
    if b"%06o\0 " % found == field:  # the usual form
        return header
    expected = _number(field)
    if found == expected:
        return header
    # Sums of 65521 and more, and sums of signed bytes, which some old programs wrote.
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
    return ShardCorrupt(f"{window.name} is not a tar")


def _truncated(tar: str, needed: str, size: int) -> ShardCorrupt:
    return ShardCorrupt(f"{tar} is truncated: {needed}, and it has {size:,}; copy or make it again")


KEY_FIELD = "__key__"
# Folders, then a base name up to its first dot; everything after it is the extension. Used for
# names that begin with a dot or contain a line break.
_KEY = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")
# Members called "__name__", or in a top folder of such a name, describe the tar itself.
_SPECIAL = re.compile(r"__[^/]*__(?:$|/)")
# Names of fields that the webdataset package adds to samples.
_RESERVED = (KEY_FIELD, "__url__")

STATE_THERE = 0
STATE_MISSING = 1
STATE_NO_INTEGER = 2


@dataclass
class TarSamples:
    """The samples and files of one tar.

    Attributes:
        keys: The bytes of all keys, one after another.
        key_ends: The end of each key in `keys`.
        extensions: The extensions in order of first occurrence.
        members: Six numbers for each file, in the order of the tar: the number of its sample, the
            number of its extension, offset and length in bytes, its value if it holds a number,
            else 0, and a `STATE_...`.
    """

    keys: bytearray = field(default_factory=bytearray)
    key_ends: array[int] = field(default_factory=lambda: array("q"))
    extensions: list[str] = field(default_factory=list)
    members: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.key_ends)


def split_name(name: str) -> tuple[str, str] | None:
    """Returns a member's key and lower-case extension; None if it belongs to no sample."""
    if name.startswith("__") and _is_special(name):
        return None
    folders, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not dot:
        return None
    if stem and "\n" not in name:
        return folders + slash + stem, extension.lower()
    match = _KEY.fullmatch(name)
    return None if match is None else (match[1], match[2].lower())


def _is_special(name: str) -> bool:
    at_top = "/" not in name and name.endswith("__")
    return at_top or _SPECIAL.match(name) is not None


def scan_tar(reader: TarReader, name: str) -> TarSamples:
    """Finds the samples of a tar by a pass over its headers."""
    return samples_of(Window(reader, name))


def samples_of(window: Window) -> TarSamples:
    """Returns the samples of a tar by a pass over its headers.

    Members of one key that are not adjacent form several samples.

    Raises:
        ShardCorrupt: If it is not a tar, is damaged, or has a file twice in one sample.
    """
    found = TarSamples()
    known: dict[str, tuple[int, bool]] = {}  # extension -> its number, whether it holds numbers
    key: str | None = None
    seen: set[int] = set()
    for file_name, offset, length in read_members(window):
        split = split_name(file_name)
        if split is None:
            continue
        if split[0] != key:
            key = split[0]
            found.keys += key.encode("utf-8", "surrogateescape")
            found.key_ends.append(len(found.keys))
            seen = set()
        if split[1] not in known:
            known[split[1]] = len(known), is_integer(split[1])
        extension, is_number = known[split[1]]
        if extension in seen or split[1] in _RESERVED:
            raise ShardCorrupt(
                f"{window.name}: {file_name} occurs twice in the sample {key!r} (extensions "
                "are compared in lower case)"
            )
        seen.add(extension)
        # The contents follow the header, so they are usually in the window already.
        data = window.get(offset, min(length, MOST_DIGITS + 1)) if is_number else b""
        number = parse_integer(data) if is_number else 0
        found.members.extend((len(found.key_ends) - 1, extension, offset, length))
        found.members.extend((0, STATE_NO_INTEGER) if number is None else (number, STATE_THERE))
    found.extensions = list(known)
    return found
