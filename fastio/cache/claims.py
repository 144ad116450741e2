"""Claims: which process fetches which piece, and cleaning up after dead processes.

All functions run within a transaction of the index, which the caller opens. At any time at most one
process has the claim of a piece, and only that process changes the piece's file:

    unclaimed -- reserve --> claimed -- publish --> ready -- drop, evict --> unclaimed
        ^                      |
        +-- give_back, bury ---+

A live process may lose a claim: if the folder is deleted and created again, or if another process
cannot see its membership and takes it for dead. Another process may then publish the piece, and
`publish` tells the first owner that its claim is gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from sqlite3 import Connection
from typing import Literal

from fastio.cache.files import Files, Written, on_disk
from fastio.cache.index import LOADING, READY, Index, count
from fastio.cache.members import forget, is_alive, is_stopped, members, remove_unborn

Outcome = Literal["ready", "mine", "others", "stopped", "no room"]


class Claims:
    """The claims of one member of a cache folder. Call the methods within a transaction."""

    def __init__(self, files: Files, token: str) -> None:
        self._files = files
        self._token = token

    def look(self, db: Connection, source: int, number: int, if_stopped: Outcome) -> Outcome | None:
        """Returns the outcome of asking for a piece; None if the piece is unclaimed.

        If a suspended process is fetching the piece, the outcome is `if_stopped`.
        """
        row = db.execute(
            "SELECT state, owner FROM pieces WHERE source = ? AND number = ?", (source, number)
        ).fetchone()
        if row is None:
            return None
        state, owner = row
        if state == READY:
            return "ready"
        if owner == self._token or is_alive(self._files.members, owner):
            # A suspended process keeps its claim, since it may go on in the middle of a write. A
            # process that waits for it may wait for ever, so the caller decides.
            return if_stopped if is_stopped(owner) else "others"
        self.bury(db, owner)
        return None

    def reserve(self, db: Connection, source: int, number: int, size: int) -> None:
        """Claims an unclaimed piece and reserves space for `size` bytes."""
        db.execute(
            "INSERT INTO pieces VALUES (?, ?, ?, ?, NULL, ?, ?, ?)",
            (source, number, on_disk(size), size, LOADING, self._token, time.time()),
        )

    def reserved(self, db: Connection, source: int, number: int) -> int | None:
        """Returns the bytes that this member's claim of a piece reserves; None without a claim."""
        found = db.execute(
            "SELECT bytes FROM pieces WHERE source = ? AND number = ? AND owner = ? AND state = ?",
            (source, number, self._token, LOADING),
        ).fetchone()
        return None if found is None else int(found[0])

    def resize(self, db: Connection, source: int, number: int, size: int) -> None:
        """Reserves space for `size` bytes for a piece that this member has claimed."""
        db.execute(
            "UPDATE pieces SET bytes = ?, size = ? WHERE source = ? AND number = ?",
            (on_disk(size), size, source, number),
        )

    def publish(
        self, db: Connection, source: int, key: str, written: Mapping[int, Written]
    ) -> set[int]:
        """Moves the files of those pieces into place that this member has claimed; returns them.

        From here on the sizes of the files count against the budget, not the reserved sizes.

        Raises:
            OSError: A file cannot be moved. The caller must then roll the transaction back.
        """
        ready: dict[int, Written] = {}
        more = 0  # bytes in excess of what was reserved
        for number, file in written.items():
            # Asked again, although this process claimed the piece: while it fetched, the folder may
            # have been deleted, or another process may have taken it for dead.
            reserved = self.reserved(db, source, number)
            if reserved is not None and self._files.put(file, key, number):
                ready[number] = file
                more += on_disk(file.size) - reserved
        now_s = time.time()
        db.executemany(
            "UPDATE pieces SET state = ?, xxh3 = ?, used = ?, bytes = ?, size = ? "
            "WHERE source = ? AND number = ?",
            [
                (READY, file.xxh3, now_s, on_disk(file.size), file.size, source, number)
                for number, file in ready.items()
            ],
        )
        # The triggers of the index count rows that are inserted or deleted. A change of size is
        # counted here.
        count(db, bytes=more, fetched=sum(file.size for file in ready.values()))
        return set(ready)

    def give_back(self, db: Connection, source: int, key: str, number: int) -> None:
        """Releases this member's claim of a piece. Does nothing if it has no claim."""
        if self.reserved(db, source, number) is not None:
            db.execute("DELETE FROM pieces WHERE source = ? AND number = ?", (source, number))
            self._files.unlink(key, number)  # a failed transaction may have left it in place
            self._files.discard(self._token, piece_name(source, number))

    def drop(self, db: Connection, source: int, key: str, number: int) -> None:
        """Deletes a piece unless it is claimed, even if it is not in the index."""
        db.execute(
            "DELETE FROM pieces WHERE source = ? AND number = ? AND state = ?",
            (source, number, READY),
        )
        claimed = db.execute(
            "SELECT 1 FROM pieces WHERE source = ? AND number = ?", (source, number)
        ).fetchone()
        if not claimed:
            self._files.unlink(key, number)

    def drop_ready(self, db: Connection, source: int, key: str, number: int, xxh3: str) -> bool:
        """Deletes a ready piece whose hash is `xxh3`. Returns False if there is none."""
        gone = db.execute(
            "DELETE FROM pieces WHERE source = ? AND number = ? AND state = ? AND xxh3 = ?",
            (source, number, READY, xxh3),
        ).rowcount
        if gone:
            self._files.unlink(key, number)
        return bool(gone)

    # --- Cleaning up after dead processes ---------------------------------------------------------

    def bury(self, db: Connection, token: str) -> None:
        """Releases the claims, runs and temporary files of a dead member, or of this one."""
        rows = db.execute(
            "SELECT key, number FROM pieces JOIN sources ON sources.id = pieces.source "
            "WHERE owner = ? AND state = ?",
            (token, LOADING),
        ).fetchall()
        for key, number in rows:
            self._files.unlink(key, number)  # a failed transaction may have left it in place
        db.execute("DELETE FROM pieces WHERE owner = ? AND state = ?", (token, LOADING))
        db.execute("DELETE FROM runs WHERE owner = ?", (token,))
        self._files.discard(token)
        # If the token is that of this process, it is still a member of the folder, and
        # `Member.leave` deletes its file.
        if token != self._token:
            forget(self._files.members, token)

    def bury_dead(self, db: Connection) -> None:
        """Releases what dead members have in the index."""
        for token in self._dead(db):
            self.bury(db, token)

    def bury_all(self, index: Index) -> None:
        """Releases what dead members have in the index, and deletes the files they have left."""
        folder = self._files.members
        dead = {token for token in members(folder) if not is_alive(folder, token)}
        # Reads without a transaction, which would block all other processes: usually no member has
        # died.
        with index.reading() as db:
            dead |= self._dead(db)
        if dead:
            with index.transaction() as db:
                for token in dead:
                    self.bury(db, token)
        remove_unborn(folder)
        self._files.discard_dead()

    def _dead(self, db: Connection) -> set[str]:
        """Returns the dead members that have runs or claims in the index."""
        owners = db.execute(
            "SELECT owner FROM runs UNION SELECT owner FROM pieces WHERE state = ?", (LOADING,)
        ).fetchall()
        folder = self._files.members
        return {o for (o,) in owners if o != self._token and not is_alive(folder, o)}


def piece_name(source: int, number: int) -> str:
    """Returns the part of a temporary file's name that identifies a piece."""
    return f"{source}-{number}"
