"""The samples of one tar: its members grouped by key, as by the webdataset package."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

from fastio.errors import ShardCorrupt
from fastio.sources.tar.headers import Window, read_members
from fastio.sources.tar.reader import TarReader
from fastio.sources.tar.values import MOST_DIGITS, is_integer, parse_integer

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


def scan_tar(reader: TarReader, name: str, window_bytes: int) -> TarSamples:
    """Finds the samples of a tar by a pass over its headers: see `samples_of`.

    Args:
        reader: Reads the tar.
        name: The name of the tar.
        window_bytes: The number of bytes read at a time.

    Raises:
        SourceNotFound: If there is no such tar.
        ShardCorrupt: If it is not a tar, is damaged, or has a file twice in one sample.
    """
    return samples_of(Window(reader, name, window_bytes))


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
