"""Finds the tars that a file, a folder, a pattern with braces, or a list of these refers to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from fastio.errors import SourceNotFound

TAR_SUFFIX = ".tar"
# Compressed tars are recognised in order to say why they cannot be read.
_SUFFIXES = (TAR_SUFFIX, ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MOST_NAMES = 10_000_000


def find_tars(path: Any) -> list[str] | None:
    """Returns the tars that a path refers to, in order; None if it does not refer to tars.

    Args:
        path: A file or a pattern with braces that ends in .tar; a folder that contains tars and no
            folders; or a list of files and patterns.

    Raises:
        SourceNotFound: If a named tar does not exist.
    """
    if isinstance(path, (list, tuple)):
        # Samples of a torch dataset may come as a list too: the first that is no tar decides.
        named = (isinstance(each, (str, os.PathLike)) and is_tar_name(each) for each in path)
        if not path or not all(named):
            return None
        return [tar for each in path for tar in find_tars(each) or ()]
    if not isinstance(path, (str, os.PathLike)):
        return None
    name = os.fsdecode(path)
    if os.path.isdir(name):
        return _in_folder(name)
    if not is_tar_name(name):
        return None
    if os.path.exists(name):
        return [name]
    names = expand_braces(name)
    missing = next((each for each in names if not os.path.isfile(each)), None)
    if missing is not None:
        among = "" if names == [name] else f" ({name} means {len(names):,} tars)"
        raise SourceNotFound(f"{missing} does not exist{among}")
    return names


def describe(names: Sequence[str]) -> str:
    """Returns a short description of tars for messages."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def expand_braces(pattern: str) -> list[str]:
    """Returns the names that a pattern stands for: {000..999}, {0..9..3}, {a..c}, {train,val}.

    Braces may be nested. As in bash, numbers are padded with zeros like the ends of their range,
    the rightmost brace varies fastest, and other braces are kept.

    Raises:
        SourceNotFound: If there are more than ten million names.
    """
    begin = pattern.find("{")
    while begin >= 0:
        end = _closing(pattern, begin)
        choices = None if end < 0 else _choices(pattern[begin + 1 : end])
        if choices is not None:
            heads = [pattern[:begin] + each for choice in choices for each in expand_braces(choice)]
            tails = expand_braces(pattern[end + 1 :])
            if len(heads) * len(tails) > _MOST_NAMES:
                raise SourceNotFound(f"{pattern} expands to more than {_MOST_NAMES:,} names")
            return [head + tail for head in heads for tail in tails]
        begin = pattern.find("{", begin + 1)
    return [pattern]


def is_tar_name(name: str | os.PathLike[str]) -> bool:
    """Whether a file's name is one of a tar, compressed or not."""
    return os.fsdecode(name).lower().endswith(_SUFFIXES)


def _in_folder(folder: str) -> list[str] | None:
    """Returns the tars of a folder; None if it has subfolders. Ignores other files."""
    tars = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                return None
            if entry.name.lower().endswith(TAR_SUFFIX):
                tars.append(entry.path)
    return sorted(tars) or None


def _closing(text: str, begin: int) -> int:
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return place
    return -1


def _choices(body: str) -> list[str] | None:
    """Returns the alternatives between braces, which may be patterns; None if there are none."""
    match = _RANGE.fullmatch(body)
    if match:
        return _numbers(*match.groups())
    if re.fullmatch(r"[A-Za-z]\.\.[A-Za-z]", body):
        first, last = ord(body[0]), ord(body[-1])
        step = 1 if first <= last else -1
        return [chr(code) for code in range(first, last + step, step)]
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(body):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append(body[start:place])
            start = place + 1
    return [*parts, body[start:]] if parts else None


def _numbers(first: str, last: str, step: str | None) -> list[str]:
    padded = any(re.match(r"-?0\d", end) for end in (first, last))
    digits = max(len(first), len(last)) if padded else 0
    begin, end = int(first), int(last)
    stride = abs(int(step)) if step and int(step) else 1
    if abs(end - begin) // stride >= _MOST_NAMES:
        raise SourceNotFound(f"{{{first}..{last}}} expands to more than {_MOST_NAMES:,} names")
    stop = end + 1 if begin <= end else end - 1
    return [f"{n:0{digits}d}" for n in range(begin, stop, stride if begin <= end else -stride)]
