"""The journal of a pack in an object store, where nothing can be added to an object.

The process that packs writes its journal to a local file (`journal`), and sends what was added to
it. Parts of up to `PART_BYTES`, or of one longer line, become objects that are written once:
pack.journal-ID-000000 and so on. The object `pack.journal` has the first line of the journal, which
names these parts, and the lines that are in no part yet; only this object is replaced. ID is the id
of the journal, so that two processes do not write the same parts.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fastio.errors import PackError, SourceChanged, SourceNotFound
from fastio.pack.items import AGAIN
from fastio.pack.journal import complete_lines, new_id
from fastio.packed import JOURNAL_NAME
from fastio.store import Stamp, Store

PART_BYTES = 1 << 20
# The ending of the names of parts, as a regular expression.
PART_ENDING = r"-[0-9a-f]{16}-[0-9]{6,}"
_PART = re.compile(re.escape(JOURNAL_NAME) + PART_ENDING)


class StoredJournal:
    """The journal of one process. Several threads may call `send`, only one the other methods.

    Args:
        store: The store.
        conditional: Whether the object is replaced only if no other process has replaced it since
            this one has read or written it, as an append needs.

    Attributes:
        parts: The names of the parts.
    """

    def __init__(self, store: Store, conditional: bool = False) -> None:
        self.parts: list[str] = []
        self._store = store
        self._conditional = conditional
        self._stamp: Stamp | None = None
        self._lock = threading.Lock()
        self._head = b""  # the object, if this process has written it
        self._begin = 0  # where the lines of the local file begin that are in no part
        self._sent = 0  # how many bytes of the local file are in the store

    def fetch(self, file: IO[bytes], sizes: Mapping[str, int] | None) -> None:
        """Takes over the journal in the store, whose process has ended.

        The file gets the lines of the journal up to the first unit whose shards are not all in the
        store. The id is new, so that a process that still writes the old journal is noticed.

        Args:
            file: A new local file.
            sizes: The files in the store; None to take no lines.
        """
        self._stamp = stamp = self._store.stat(JOURNAL_NAME)
        if sizes is None:
            return
        try:
            head = bytes(self._store.read(JOURNAL_NAME, expect=stamp))
            parts = parts_of(head)
            first, *rest = [*complete_lines(head.splitlines(keepends=True)), b""]
            if first:
                file.write(_with(first, id=new_id(), parts=None))
            for name in parts:
                lines = bytes(self._store.read(name)).splitlines(keepends=True)
                if not _copy_believed(file, lines, sizes):
                    return
                self.parts.append(name)
                self._begin = file.tell()
            _copy_believed(file, rest, sizes)
        except (AttributeError, KeyError, SourceNotFound, TypeError, ValueError) as error:
            raise PackError(
                f"{self._store.url.rstrip('/')}/{JOURNAL_NAME} is damaged "
                f"({type(error).__name__}: {error}); {AGAIN}"
            ) from error

    @property
    def is_there(self) -> bool:
        """Whether this process has sent the journal."""
        return bool(self._head)

    @property
    def is_new(self) -> bool:
        """Whether the store has no journal yet, and so nothing of this pack."""
        return self._stamp is None and not self._head

    def is_sending(self) -> bool:
        """Returns whether a thread sends the journal at the moment."""
        return self._lock.locked()

    def send(self, path: Path, length: int | None = None) -> None:
        """Sends what was added to the local file.

        Args:
            path: The local file.
            length: Nothing is sent if this many bytes of the file have been sent already. None:
                always replaces the object, which fails if another process has replaced or deleted
                it.
        """
        with self._lock:
            if length is not None and self._sent >= length:
                return
            with open(path, "rb") as file:
                first = file.readline()
                self._begin = self._begin or len(first)
                lines = self._send_parts(file, json.loads(first)["id"])
            if self.parts:
                first = _with(first, parts=self.parts)
            head = first + lines
            if self._conditional:
                self._stamp = self._store.replace(JOURNAL_NAME, head, self._stamp)
            else:
                self._store.write(JOURNAL_NAME, head)
            self._head, self._sent = head, self._begin + len(lines)

    def _send_parts(self, file: IO[bytes], own_id: str) -> bytes:
        """Sends all whole parts of a local file, and returns the complete lines after them."""
        while True:
            file.seek(self._begin)
            lines = file.read(PART_BYTES)
            if len(lines) == PART_BYTES and b"\n" not in lines:
                lines += file.readline()
            is_part = len(lines) >= PART_BYTES
            lines = lines[: lines.rfind(b"\n") + 1]
            if not is_part or not lines:
                return lines
            name = f"{JOURNAL_NAME}-{own_id}-{len(self.parts):06d}"
            self._store.write(name, lines)
            self.parts.append(name)
            self._begin += len(lines)

    def delete(self) -> bool:
        """Deletes the journal if it is still that of this process; returns whether it was."""
        try:
            if self._conditional:
                self._stamp = self._store.replace(JOURNAL_NAME, renewed(self._head), self._stamp)
            elif self._head and self._store.read(JOURNAL_NAME) != self._head:
                return False
        except (SourceChanged, SourceNotFound):
            return False
        self._store.delete(JOURNAL_NAME)
        delete_parts(self._store, self.parts)
        return True


def stored_lines(store: Store, head: bytes) -> Iterator[bytes]:
    """Yields the lines of a journal in a store, given the object `pack.journal`."""
    first, *rest = head.splitlines(keepends=True)
    yield first
    for name in parts_of(head):
        yield from bytes(store.read(name)).splitlines(keepends=True)
    yield from rest


def parts_of(head: bytes) -> list[str]:
    """Returns the names of the parts, given the object `pack.journal`; ValueError if damaged."""
    first, end, _ = head.partition(b"\n")
    names = list(dict(json.loads(first)).get("parts", ())) if end else []
    if not all(isinstance(name, str) and _PART.fullmatch(name) for name in names):
        raise ValueError(f"{names} are not names of parts"[:200])
    return names


def delete_parts(store: Store, names: list[str]) -> None:
    """Deletes parts of a journal, after the journal itself."""
    for name in names:
        store.delete(name)


def renewed(journal: bytes) -> bytes:
    """Returns a journal with a new id, given its first line or more.

    A process that replaces its journal, or another's, with this can delete it: no other process
    that has read or written the journal before can replace it any more.
    """
    return _with(journal, id=new_id())


def _with(journal: bytes, **values: Any) -> bytes:
    """Returns a journal with other values in its first line; None removes one."""
    first, _, rest = journal.partition(b"\n")
    line = {**json.loads(first), **values}
    line = {name: value for name, value in line.items() if value is not None}
    return json.dumps(line).encode() + b"\n" + rest


def _copy_believed(file: IO[bytes], lines: Iterable[bytes], sizes: Mapping[str, int]) -> bool:
    """Writes lines to a file up to the first unit whose shards are not all in the store.

    Returns:
        Whether there is no such unit.
    """
    for line in complete_lines(lines):
        for entry in json.loads(line).get("entries", ()):
            if sizes.get(entry["name"]) != entry["bytes"]:
                return False
        file.write(line)
    return True
