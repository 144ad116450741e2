"""Who fetches which piece: claims, what they become, and what the dead have left of theirs.

All of it happens within a transaction of the index, which the caller opens. So of all processes one
has a piece's claim, and only that one ever changes what is in the piece's place:

    nobody's -- reserve --> claimed -- publish --> ready -- drop, evict --> nobody's
        ^                      |
        +-- give_back, bury ---+

A claim may be lost while its owner lives: the folder may be deleted and made again, and others may
take for dead whose membership cannot be seen. Then it is somebody else's to publish, and the first
owner is told so when it comes late.
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
    """The claims of one member of a cache folder. As thread-safe as the transactions are.

    Args:
        files: of the folder.
        token: the member's.
    """

    def __init__(self, files: Files, token: str) -> None:
        self._files = files
        self._token = token

    def look(self, db: Connection, source: int, number: int, if_stopped: Outcome) -> Outcome | None:
        """What asking for a piece comes to; None where it is nobody's.

        Args:
            source, number: the piece.
            if_stopped: what it comes to where a stopped process fetches it.
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
            return if_stopped if is_stopped(owner) else "others"
        self.bury(db, owner)
        return None

    def reserve(self, db: Connection, source: int, number: int, size: int) -> None:
        """Claims a piece that is nobody's, and the room for so many bytes."""
        db.execute(
            "INSERT INTO pieces VALUES (?, ?, ?, ?, NULL, ?, ?, ?)",
            (source, number, on_disk(size), size, LOADING, self._token, time.time()),
        )

    def reserved(self, db: Connection, source: int, number: int) -> int | None:
        """The bytes that this member's claim of a piece reserves; None where it has none."""
        found = db.execute(
            "SELECT bytes FROM pieces WHERE source = ? AND number = ? AND owner = ? AND state = ?",
            (source, number, self._token, LOADING),
        ).fetchone()
        return None if found is None else int(found[0])

    def publish(
        self, db: Connection, source: int, key: str, written: Mapping[int, Written]
    ) -> set[int]:
        """Puts those of some pieces in their places that this member has claimed.

        What they take is what their files take from here on.

        Returns:
            Their numbers.

        Raises:
            OSError: one cannot be put there. The transaction is not to be committed.
        """
        ready: dict[int, Written] = {}
        more = 0  # bytes than were reserved
        for number, file in written.items():
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
        count(db, bytes=more, fetched=sum(file.size for file in ready.values()))
        return set(ready)

    def give_back(self, db: Connection, source: int, key: str, number: int) -> None:
        """Makes a piece nobody's that is claimed by this member; others are left alone."""
        if self.reserved(db, source, number) is not None:
            db.execute("DELETE FROM pieces WHERE source = ? AND number = ?", (source, number))
            self._files.unlink(key, number)  # put there, and the transaction failed
            self._files.discard(self._token, piece_name(source, number))

    def drop(self, db: Connection, source: int, key: str, number: int) -> None:
        """Deletes a piece unless it is claimed, also one that the index does not know."""
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
        """Deletes a piece that is ready and has this hash in the index; False: there is none."""
        gone = db.execute(
            "DELETE FROM pieces WHERE source = ? AND number = ? AND state = ? AND xxh3 = ?",
            (source, number, READY, xxh3),
        ).rowcount
        if gone:
            self._files.unlink(key, number)
        return bool(gone)

    # --- What is left of the dead -----------------------------------------------------------------

    def bury(self, db: Connection, token: str) -> None:
        """Takes back what a member has left, a dead one or this one."""
        rows = db.execute(
            "SELECT key, number FROM pieces JOIN sources ON sources.id = pieces.source "
            "WHERE owner = ? AND state = ?",
            (token, LOADING),
        ).fetchall()
        for key, number in rows:
            self._files.unlink(key, number)  # put there, and the transaction failed
        db.execute("DELETE FROM pieces WHERE owner = ? AND state = ?", (token, LOADING))
        db.execute("DELETE FROM runs WHERE owner = ?", (token,))
        self._files.discard(token)
        if token != self._token:
            forget(self._files.members, token)

    def bury_dead(self, db: Connection) -> None:
        """Takes back what the dead have in the index."""
        for token in self._dead(db):
            self.bury(db, token)

    def bury_all(self, index: Index) -> None:
        """Takes back all that killed processes have left, in the index and beside it.

        Raises:
            CacheError: the index cannot be used.
        """
        folder = self._files.members
        dead = {token for token in members(folder) if not is_alive(folder, token)}
        with index.reading() as db:
            dead |= self._dead(db)
        if dead:
            with index.transaction() as db:
                for token in dead:
                    self.bury(db, token)
        remove_unborn(folder)
        self._files.discard_dead()

    def _dead(self, db: Connection) -> set[str]:
        """Members that are gone and have runs or claims in the index."""
        owners = db.execute(
            "SELECT owner FROM runs UNION SELECT owner FROM pieces WHERE state = ?", (LOADING,)
        ).fetchall()
        folder = self._files.members
        return {o for (o,) in owners if o != self._token and not is_alive(folder, o)}


def piece_name(source: int, number: int) -> str:
    """What stands for a piece in the names of temporary files."""
    return f"{source}-{number}"
