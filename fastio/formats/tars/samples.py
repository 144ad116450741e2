"""The samples of one tar: its members grouped by key, as the webdataset package groups them."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

from fastio.errors import ShardCorrupt
from fastio.formats.tars.headers import Window, read_members
from fastio.formats.tars.reader import TarReader
from fastio.formats.tars.values import MOST_DIGITS, is_integer, parse_integer

KEY_FIELD = "__key__"
# Folders, then a base name up to its first dot; all behind it is the extension. This decides where
# a name begins with a dot or has a line break.
_KEY = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")
# "__name__", and whatever lies in a folder of such a name at the top, is about the tar.
_SPECIAL = re.compile(r"__[^/]*__(?:$|/)")
# Names that the webdataset package gives to values of its own.
_RESERVED = (KEY_FIELD, "__url__")

STATE_THERE = 0
STATE_MISSING = 1
STATE_NO_INTEGER = 2


@dataclass
class TarSamples:
    """What one tar holds.

    Attributes:
        keys: bytes of the samples' keys, one after the other.
        key_ends: where each key ends in them.
        extensions: those that occur, in the order in which they do.
        members: six numbers for each, in the order of the tar: its sample's number in this tar, its
            extension's number, offset and length in bytes, the value of the number that it is, or
            0, and a `STATE_...`.
    """

    keys: bytearray = field(default_factory=bytearray)
    key_ends: array[int] = field(default_factory=lambda: array("q"))
    extensions: list[str] = field(default_factory=list)
    members: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.key_ends)


def split_name(name: str) -> tuple[str, str] | None:
    """A member's key and its extension in lower case; None for what belongs to no sample."""
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


def scan_tar(reader: TarReader, name: str, window_bytes: int) -> TarSamples:
    """Find the samples of a tar by a pass over its headers: see `samples_of`.

    Args:
        reader: reads the tar.
        name: of the tar.
        window_bytes: how much to read at a time.

    Raises:
        SourceNotFound: there is no such tar.
        ShardCorrupt: it is none, or damaged, or has a file twice in one sample.
    """
    return samples_of(Window(reader, name, window_bytes))


def samples_of(window: Window) -> TarSamples:
    """The samples of a tar, by a pass over its headers.

    Members of one key that do not follow each other are several samples.

    Raises:
        ShardCorrupt: it is none, or damaged, or has a file twice in one sample.
    """
    found = TarSamples()
    known: dict[str, tuple[int, bool]] = {}  # number of an extension, whether it is for numbers
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
                f"{window.name}: {file_name} is there twice in the sample {key!r} (extensions "
                "count in lower case)"
            )
        seen.add(extension)
        # Right behind the header, and with it in the window: this is the time to read it.
        data = window.get(offset, min(length, MOST_DIGITS + 1)) if is_number else b""
        number = parse_integer(data) if is_number else 0
        found.members.extend((len(found.key_ends) - 1, extension, offset, length))
        found.members.extend((0, STATE_NO_INTEGER) if number is None else (number, STATE_THERE))
    found.extensions = list(known)
    return found
