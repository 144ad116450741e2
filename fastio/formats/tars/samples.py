"""The samples of one tar: its members grouped by key, as the webdataset package groups them."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

from fastio.errors import ShardCorrupt
from fastio.formats.tars.headers import Member, Window, read_members
from fastio.formats.tars.reader import TarReader
from fastio.formats.tars.values import is_integer, parse_integer

KEY_FIELD = "__key__"
# Folders, then a base name up to its first dot; all behind it is the extension.
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

    Members are listed in the order of the tar; each array has one number for each.

    Attributes:
        keys: bytes of the samples' keys, one after the other.
        key_ends: where each key ends in them.
        extensions: those that occur, in the order in which they do.
        sample: number of the member's sample in this tar.
        extension: number of its extension, an index of `extensions`.
        offset, length: its bytes in the tar.
        value: what it holds, for extensions that stand for numbers; 0 for others.
        state: STATE_NO_INTEGER where it ought to hold a number and does not.
    """

    keys: bytearray = field(default_factory=bytearray)
    key_ends: array[int] = field(default_factory=lambda: array("q"))
    extensions: list[str] = field(default_factory=list)
    sample: array[int] = field(default_factory=lambda: array("q"))
    extension: array[int] = field(default_factory=lambda: array("q"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    length: array[int] = field(default_factory=lambda: array("q"))
    value: array[int] = field(default_factory=lambda: array("q"))
    state: array[int] = field(default_factory=lambda: array("B"))

    def __len__(self) -> int:
        return len(self.key_ends)


def split_name(name: str) -> tuple[str, str] | None:
    """A member's key and its extension in lower case; None for what belongs to no sample."""
    if name.startswith("__") and _is_special(name):
        return None
    match = _KEY.fullmatch(name)
    return None if match is None else (match[1], match[2].lower())


def _is_special(name: str) -> bool:
    at_top = "/" not in name and name.endswith("__")
    return at_top or _SPECIAL.match(name) is not None


def scan_tar(reader: TarReader, name: str, window_bytes: int) -> TarSamples:
    """Find the samples of a tar by a pass over its headers.

    Members of one key that do not follow each other are several samples.

    Args:
        reader: reads the tar.
        name: of the tar.
        window_bytes: how much to read at a time.

    Raises:
        SourceNotFound: there is no such tar.
        ShardCorrupt: it is none, or damaged, or has a file twice in one sample.
    """
    window = Window(reader, name, window_bytes)
    found = TarSamples()
    numbers: dict[str, int] = {}
    integers: set[int] = set()
    key: str | None = None
    seen: set[int] = set()
    for member in read_members(window):
        split = split_name(member.name)
        if split is None:
            continue
        if split[0] != key:
            key = split[0]
            found.keys += key.encode("utf-8", "surrogateescape")
            found.key_ends.append(len(found.keys))
            seen = set()
        extension = numbers.get(split[1])
        if extension is None:
            extension = numbers[split[1]] = len(numbers)
            if is_integer(split[1]):
                integers.add(extension)
        if extension in seen or split[1] in _RESERVED:
            raise ShardCorrupt(
                f"{name}: {member.name} is there twice in the sample {key!r} (extensions count in "
                "lower case)"
            )
        seen.add(extension)
        _append(found, extension, member, window if extension in integers else None)
    found.extensions = list(numbers)
    return found


def _append(found: TarSamples, extension: int, member: Member, integer: Window | None) -> None:
    found.sample.append(len(found.key_ends) - 1)
    found.extension.append(extension)
    found.offset.append(member.offset)
    found.length.append(member.length)
    value = 0
    state = STATE_THERE
    if integer is not None:
        # Right behind the header, and with it in the window: this is the time to read it.
        number = parse_integer(integer.get(member.offset, min(member.length, 65)))
        value, state = (0, STATE_NO_INTEGER) if number is None else (number, STATE_THERE)
    found.value.append(value)
    found.state.append(state)
