"""The file of a journal: what locks it, and what is done with the journal of another process."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

from fastio.errors import PackConflict
from fastio.packed import JOURNAL_NAME
from fastio.runtime.texts import Names


def remove_if(folder: Path, is_unneeded: Callable[[Iterable[bytes]], bool]) -> None:
    """Deletes the journal of a folder, if there is one and a function returns true for its lines.

    Raises:
        PackConflict: Another process is packing there.
    """
    path = folder / JOURNAL_NAME
    try:
        file = open(path, "rb", opener=no_link)  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        lock(file, folder)
        if is_unneeded(file):
            unlink(file, path)


def check_not_in_use(folder: Path) -> None:
    """Raises PackConflict if another process packs to a folder that had a journal."""
    remove_if(folder, lambda journal: False)


@contextmanager
def exclusive_access(folder: Path, discard: bool) -> Iterator[bool]:
    """Keeps other processes from packing to a folder.

    Args:
        folder: The folder.
        discard: Whether the journal of an unfinished pack is deleted at the end.

    Yields:
        Whether there is such a journal.

    Raises:
        PackConflict: Another process is packing there.
    """
    path = folder / JOURNAL_NAME
    with open(path, "a+b", opener=no_link) as file:
        lock(file, folder)
        # An empty journal was created by this call, or by a process that was killed right after it
        # had created one. It excludes other processes only while it is locked.
        unfinished = os.fstat(file.fileno()).st_size > 0
        try:
            yield unfinished
            unfinished = unfinished and not discard
        finally:
            if not unfinished:
                unlink(file, path)


@contextmanager
def shortened(folder: Path) -> Iterator[tuple[bool, str]]:
    """Locks the journal of an unfinished pack without its finished units, to discard them.

    Yields:
        Whether there is a journal, and its id; "" if it has none.

    Raises:
        PackConflict: Another process is packing there.
    """
    try:
        file = open(folder / JOURNAL_NAME, "r+b", opener=no_link)  # noqa: SIM115
    except FileNotFoundError:
        yield False, ""
        return
    with file:
        lock(file, folder)
        first = file.readline()
        file.truncate(len(first))
        yield True, id_of(first)


def id_of(line: bytes) -> str:
    """Returns the id in the first line of a journal; "" if it is damaged."""
    try:
        return str(json.loads(line)["id"])
    except (KeyError, TypeError, ValueError):
        return ""


def complete_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a journal, without an incomplete last line, as a kill may leave it."""
    return (line for line in lines if line.endswith(b"\n"))


def contents_of(lines: Iterable[bytes]) -> tuple[dict[str, Any], Names]:
    """Returns the options of a journal and the names of its shards; nothing if it is damaged."""
    names = Names()
    try:
        values = map(json.loads, complete_lines(lines))
        options = dict(next(values)["options"])
        for value in values:
            for entry in value.get("entries", ()):
                names.append(entry["name"])
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        return {}, Names()
    return options, names


def in_use(destination: Path | str) -> PackConflict:
    """Returns the error of a destination whose journal belongs to another process."""
    return PackConflict(
        f"another process is packing to {destination}: wait until it ends, then try again"
    )


def open_journal(path: Path) -> FileIO:
    """Opens or creates a journal, without truncating what another pack may be writing."""
    # Unbuffered: after a failed write, nothing is left that a later flush would write.
    return open(path, "a+b", buffering=0, opener=no_link)


def no_link(path: str, flags: int) -> int:
    """Opens a journal, without following a symbolic link to a file elsewhere."""
    # O_NONBLOCK, so that a pipe of that name does not wait for a writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def unlink(file: IO[bytes], path: Path) -> None:
    """Deletes a journal that is open and locked, unless its path is another file by now."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
            path.unlink()


def lock(file: IO[bytes], folder: Path) -> None:
    """Locks a journal until it is closed; PackConflict if another process has locked it."""
    with suppress(OSError):  # some network file systems have no locks
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use(folder) from error
    # The previous pack may have deleted the file between opening and locking. Nobody would find
    # what is written to a deleted file.
    if not os.fstat(file.fileno()).st_nlink:
        raise PackConflict(f"another process has just finished packing to {folder}: try again")
