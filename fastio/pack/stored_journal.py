"""The journal of a pack in an object store, where nothing can be added to an object.

The process that packs writes its journal to a local file (`journal`), and sends what was added to
it. Parts of up to `PART_BYTES`, or of one longer line, become objects that are written once:
pack.journal-ID-000000 and so on. The object `pack.journal` has the first line of the journal, which
names these parts, and the lines that are in no part yet; only this object is replaced. ID is the id
of the journal, so that two processes do not write the same parts.

Like the locked file in a folder, the object `pack.journal` is the claim of one process to the
destination, for a pack, an append or `gc`. The process first writes the object, on the condition
that no other process has written it in the meantime. Later it replaces only the version that it
wrote last. A process that resumes, replaces or discards a pack writes an object with another id.
The previous owner can then write neither a journal nor a manifest, and stops. No time limit decides
whether an owner is alive, so the claim of a killed process can be taken over at once.

In a store without conditional writes, the object is compared before it is written. This detects
another process too, unless both write at the same moment.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fastio.errors import PackError, SourceChanged, SourceNotFound
from fastio.pack.items import AGAIN
from fastio.pack.journal import GC, new_id
from fastio.pack.journal_file import complete_lines, contents_of, id_of, in_use
from fastio.packed import JOURNAL_NAME
from fastio.store import NoConditionalWrites, Stamp, Store

PART_BYTES = 1 << 20
# The ending of the names of parts, as a regular expression.
PART_ENDING = r"-[0-9a-f]{16}-[0-9]{6,}"
_SHARD_ID = re.compile(r"-([0-9a-f]{16})\.arrow$")  # in the name of a shard
_PART = re.compile(re.escape(JOURNAL_NAME) + PART_ENDING)


class StoredJournal:
    """The journal of one process. Several threads may call `send` and `check`, one the others.

    Args:
        store: The store.
        conditional: Whether a store without conditional writes is refused, as an append needs.

    Attributes:
        parts: The names of the parts.
        is_conditional: Whether the store has conditional writes, as far as is known.
    """

    def __init__(self, store: Store, conditional: bool = False) -> None:
        self.parts: list[str] = []
        self.is_conditional = True
        self._store = store
        self._required = conditional
        self._stamp: Stamp | None = None
        self._lock = threading.Lock()
        self._head = b""  # the object, if this process has written it
        self._begin = 0  # where the lines of the local file begin that are in no part
        self._sent = 0  # how many bytes of the local file are in the store

    def find(self) -> int:
        """Looks for the journal of another process, and returns its size; 0 if there is none."""
        with suppress(SourceNotFound):
            self._stamp = self._store.stat(JOURNAL_NAME)
        return 0 if self._stamp is None else self._stamp.size

    def claim(self, path: Path) -> None:
        """Sends the local file for the first time, which claims the destination for this process.

        Raises:
            SourceChanged: Another process has written or deleted the journal since `find` or
                `fetch`.
            NoConditionalWrites: The store has no conditional writes, and they are required.
        """
        self.send(path)
        self._check_conditions()

    def claim_for_gc(self, ids: Iterable[str] = ()) -> None:
        """Like `claim`, with a journal of one line that is in no local file.

        Args:
            ids: Ids of the journal that it replaces, for the next `gc` if this one is interrupted.

        Raises:
            PackConflict: Another process has written or deleted the journal since `find`.
        """
        line = {"journal": 1, "id": new_id(), "options": {"source": GC}, "ids": list(ids)}
        try:
            with self._lock:
                self._put(json.dumps(line).encode() + b"\n")
        except SourceChanged as error:
            raise in_use(self._store.url) from error
        self._check_conditions()

    def fetch(self, file: IO[bytes], sizes: Mapping[str, int] | None) -> None:
        """Takes over the journal in the store, whose process has ended.

        The file gets the lines of the journal up to the first unit whose shards are not all in the
        store. The id is new, so that a process that still writes the old journal is noticed.

        Args:
            file: A new local file.
            sizes: The files in the store; None to take no lines.
        """
        if not self.find() or sizes is None:
            return
        stamp = self._stamp
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
    def is_new(self) -> bool:
        """Whether the store has no journal yet, and so nothing of this pack."""
        return self._stamp is None and not self._head

    def check(self) -> None:
        """Raises SourceChanged if another process has replaced or deleted the journal."""
        with self._lock:
            self._check()

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

        Raises:
            SourceChanged: Another process has written or deleted the journal.
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
            self._put(first + lines)
            self._sent = self._begin + len(lines)

    def _put(self, head: bytes) -> None:
        """Writes the object if its version is the one that was read or written last."""
        if self.is_conditional:
            try:
                self._stamp = self._store.replace(JOURNAL_NAME, head, self._stamp)
            except NoConditionalWrites:
                if self._required:
                    raise
                self.is_conditional = False
        if not self.is_conditional:
            self._check()
            self._store.write(JOURNAL_NAME, head)
        self._head = head

    def _check(self) -> None:
        """See `check`. Before the first write, compares with what `find` has found."""
        try:
            if self._head and not self.is_conditional:
                # A store without conditional writes may not distinguish versions, so the contents
                # are compared: each journal has an id of its own.
                same = self._store.read(JOURNAL_NAME) == self._head
            else:
                found = self._store.stat(JOURNAL_NAME)
                same = self._stamp is not None and found.key == self._stamp.key
        except SourceNotFound:
            same = self._stamp is None and not self._head
        if not same:
            raise SourceChanged(
                f"{self._store.url.rstrip('/')}/{JOURNAL_NAME} was written or deleted by another "
                "process"
            )

    def _check_conditions(self) -> None:
        """Finds out whether the store ignores conditions, as some servers do without an error.

        The object has just been written, so a write on the condition that it is new must fail.
        """
        head = self._head
        if not self.is_conditional:
            return
        try:
            self._store.replace(JOURNAL_NAME, renewed(head), None)
        except SourceChanged:
            return
        self._store.write(JOURNAL_NAME, head)
        self.is_conditional = False
        if self._required:
            self._store.delete(JOURNAL_NAME)
            raise NoConditionalWrites.of(
                f"{self._store.url.rstrip('/')}/{JOURNAL_NAME}",
                "the server ignored the condition of a write",
            )

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

    def renew(self) -> bool:
        """Gives the journal another id; returns whether it was still that of this process.

        Afterwards no process that has read the journal before can take it over. Without
        conditional writes, the journal is only compared.
        """
        if not self._head:
            return False
        try:
            if self.is_conditional:
                self._put(renewed(self._head))
            else:
                self._check()
        except SourceChanged:
            return False
        return True

    def delete(self) -> bool:
        """Deletes the journal if it is still that of this process; returns whether it was."""
        if not self.renew():
            return False
        self._store.delete(JOURNAL_NAME, self._stamp if self.is_conditional else None)
        delete_parts(self._store, self.parts)
        self._head, self._stamp = b"", None
        return True


def stored_lines(store: Store, head: bytes) -> Iterator[bytes]:
    """Yields the lines of a journal in a store, given the object `pack.journal`."""
    first, *rest = head.splitlines(keepends=True)
    yield first
    for name in parts_of(head):
        yield from bytes(store.read(name)).splitlines(keepends=True)
    yield from rest


def known_ids(store: Store) -> set[str]:
    """Returns the ids of the journal in a store and of the shards that it names; empty if none.

    A pack that was resumed has shards of several processes, each with its own id.
    """
    try:
        head = bytes(store.read(JOURNAL_NAME))
    except SourceNotFound:
        return set()
    first = head.partition(b"\n")[0]
    found = {id_of(first)}
    with suppress(KeyError, TypeError, ValueError):
        found.update(map(str, json.loads(first)["ids"]))  # of the pack that a `gc` was discarding
    with suppress(SourceNotFound):  # of a part of the journal
        for name in contents_of(stored_lines(store, head))[1]:
            found.update(_SHARD_ID.findall(name))
    return found - {""}


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
