"""The cache folder: pieces of remote data as files, under a budget that all processes share.

A piece is claimed, fetched, checked, written beside its place, and put there by the transaction
that confirms the claim and says that it is ready. Room for it is reserved by the claim, and made by
deleting the pieces that are needed furthest in the future. What a killed process left is taken back
by whoever meets it next.

    files       where everything lies; writing and deleting
    claims      who fetches what, and what the dead have left
    eviction    what goes where room is wanted
    index       the database that all of it is noted in

This module is where they meet: each method is one transaction of the index, or a few.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

import xxhash

from fastio.cache.claims import Claims, Outcome, piece_name
from fastio.cache.direct import Aligned
from fastio.cache.eviction import Evictor, NextUse, Run
from fastio.cache.files import Files, Stamp, Written, on_disk, take_folder
from fastio.cache.held import Access
from fastio.cache.index import READY, Index, count, pieces_known, total_bytes
from fastio.cache.members import Member
from fastio.errors import CacheError

_INDEX_BYTES = 1 << 20  # of the budget, for the index and folders;
_INDEX_MARGIN = 128 << 10  # of it for folders, and for what the index grows by in one transaction
_LEFT_FREE = 0.05  # of the disk, where no budget is given
State = Literal["whole", "missing", "damaged"]  # of a piece


@dataclass(frozen=True)
class Source:
    """A remote dataset as a cache knows it.

    Attributes:
        number: of its pieces' rows.
        key: its folder's name.
    """

    number: int
    key: str
    url: str


class CacheFolder:
    """A cache folder, open. Thread-safe; of one process (a forked child opens its own).

    Args:
        path: the folder; made if need be, and then it must be empty.
        budget: bytes that all pieces together may have; None: what is free on the disk, less a
            twentieth of it, and what the cache has already.
        next_use: ranks pieces for eviction; None: by last use.
        shared: whether the group of the folder may use it too.

    Attributes:
        index: which pieces there are.
        files: where they are.
        claims: who fetches what.

    Raises:
        CacheError: the folder holds something else, belongs to others, or cannot be used.
    """

    def __init__(
        self,
        path: Path,
        budget: int | None = None,
        next_use: NextUse | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.path = path
        try:
            top = take_folder(path, Access(shared))
            entered = top.folder("members", make=True)
            self._member = Member(entered)
            self.files = Files(top, entered, self._member.token)
            self.index = Index(top)
        except CacheError:
            raise
        except OSError as error:
            raise CacheError(f"the cache folder {path} cannot be used: {error}") from error
        self.claims = Claims(self.files, self._member.token)
        self._evictor = Evictor(self.files, self.claims, next_use)
        self._owed: list[tuple[Source, int]] = []
        self._owed_lock = threading.Lock()
        self._whole: dict[tuple[int, int], Stamp] = {}  # pieces that were compared with the index
        self.claims.bury_all(self.index)
        self.budget = self._all_room() if budget is None else budget

    def rank_by(self, next_use: NextUse) -> None:
        """Takes another ranking for evictions."""
        self._evictor.next_use = next_use

    @property
    def token(self) -> str:
        """This process's name among the members."""
        return self._member.token

    @property
    def room(self) -> int:
        """Bytes that pieces may have: the budget, less what the index takes."""
        return max(0, self.budget - _INDEX_BYTES)

    def is_there(self) -> bool:
        """Whether the folder is still the one that was opened."""
        return self.index.is_there() and self.files.members.has(self.token)

    def source(self, url: str, fingerprint: str, rows: int, block_rows: int, size: int) -> Source:
        """Registers a dataset cut in blocks of so many rows.

        Its fingerprint stands for all of its bytes, so copies behind other URLs are the same
        source.

        Raises:
            CacheError: the index cannot be used.
        """
        key = f"{fingerprint}-{block_rows}"
        self.files.piece(key, 0)  # refuses what cannot be a folder's name
        with self.index.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO sources (key, url, fingerprint, rows, block_rows, bytes) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (key, url, fingerprint, rows, block_rows, size),
            )
            (number,) = db.execute("SELECT id FROM sources WHERE key = ?", (key,)).fetchone()
        return Source(int(number), key, url)

    def file(self, source: Source, number: int) -> Path:
        """Where a piece's file is, if it is."""
        return Path(self.path_of(source, number))

    def path_of(self, source: Source, number: int) -> str:
        """`file` as a string, for those who ask often."""
        return self.files.piece(source.key, number)

    def exists(self, source: Source, number: int, size: int) -> bool:
        """Whether a piece's file is there and has its size; what is in it is not looked at."""
        stamp = self.files.stamp(source.key, number)
        return stamp is not None and stamp.size == size

    def has(self, source: Source, number: int, size: int | None = None) -> bool:
        """Whether a piece is there, and whole: `look` for those who do not ask what is wrong.

        Raises:
            CacheError: as `look`.
        """
        return self.look(source, number, size) == "whole"

    def look(self, source: Source, number: int, size: int | None = None) -> State:
        """Whether a piece is there to be read, and is what was written.

        The first time that this process asks for a piece, and again when its file has changed, all
        of it is compared with the hash in the index. A piece that is not what the index says is
        deleted and counted; the next claim of it is the caller's.

        Args:
            size: the bytes that it must have; None: those that the index says.

        Raises:
            CacheError: the index cannot be used.
        """
        stamp = self.files.stamp(source.key, number)
        if stamp is None:
            return "missing"
        if self._whole.get((source.number, number)) == stamp and size in (None, stamp.size):
            return "whole"
        expected = self._expected(source, number)
        if expected is None:
            return "missing"  # not said to be ready: whoever claims it writes it anew
        digest = xxhash.xxh3_64()
        try:
            stamp = self.files.read(source.key, number, digest.update)
        except FileNotFoundError:
            return "missing"
        except CacheError:
            raise
        except OSError:  # the disk does not give it back
            stamp = Stamp(0, -1, 0, 0)
        found = stamp.size, digest.hexdigest()
        if found == expected and size in (None, stamp.size):
            self._whole[source.number, number] = stamp
            return "whole"
        return "damaged" if self._drop_damaged(source, number, expected[1]) else "missing"

    def _expected(self, source: Source, number: int) -> tuple[int, str] | None:
        """Size and hash of a piece that the index says is ready."""
        with self.index.reading() as db:
            found = db.execute(
                "SELECT size, xxh3 FROM pieces WHERE source = ? AND number = ? AND state = ?",
                (source.number, number, READY),
            ).fetchone()
            return None if found is None else (int(found[0]), str(found[1]))

    def _drop_damaged(self, source: Source, number: int, xxh3: str) -> bool:
        """Deletes a piece that is not what the index says; False: it was replaced meanwhile."""
        with self.index.transaction() as db:
            dropped = self.claims.drop_ready(db, source.number, source.key, number, xxh3)
            count(db, damaged=int(dropped))
        return dropped

    def claim(
        self,
        source: Source,
        sizes: Mapping[int, int],
        keep: Collection[int] = (),
        told: Mapping[int, Run] | None = None,
        if_stopped: Outcome = "no room",
    ) -> dict[int, Outcome]:
        """Asks for pieces that are to be there.

        "ready": it is said to be there. "mine": the caller fetches it, and calls `store` or
        `abandon`. "others": another thread or process fetches it. "no room": all that could be
        evicted is needed sooner; the caller does without the cache.

        What a process fetches that is stopped (SIGSTOP, Ctrl-Z) stays its own, with the room that
        it has reserved: it may be continued at any time, even in the middle of a write. Who cannot
        wait for that does without the cache here too.

        Args:
            source: theirs.
            sizes: bytes of each piece, by number.
            keep: pieces of the source that must stay.
            told: where this process's runs stand, as `tell` takes it.
            if_stopped: the outcome of pieces that a stopped process fetches.

        Raises:
            CacheError: the index cannot be used.
        """
        outcomes: dict[int, Outcome] = {}
        self._pay()
        with self.index.transaction() as db:
            for run, at in (told or {}).items():
                self._tell(db, run, at)
            for number in sizes:
                found = self.claims.look(db, source.number, number, if_stopped)
                if found is not None:
                    outcomes[number] = found
            needed = {n: on_disk(size) for n, size in sizes.items() if n not in outcomes}
            # What can never fit is not worth an eviction.
            wanted = sum(size for size in needed.values() if size <= self.room)
            # The index has its room, and where it has grown beyond it some of the pieces'.
            grown = max(0, self.index.bytes_on_disk + _INDEX_MARGIN - _INDEX_BYTES)
            room = self.room - grown - total_bytes(db)
            if wanted > room:
                room += self._evictor.evict(
                    db,
                    wanted - room,
                    lambda of, number: of == source.number and (number in keep or number in sizes),
                )
            for number, size in needed.items():
                if size > room:
                    outcomes[number] = "no room"
                    continue
                room -= size
                self.claims.reserve(db, source.number, number, sizes[number])
                outcomes[number] = "mine"
        return outcomes

    def store(
        self, source: Source, number: int, parts: Sequence[Any], *, misses: bool = True
    ) -> bool:
        """Writes a claimed piece's bytes and says that it is ready.

        Args:
            parts: bytes-like objects, which follow one another in the file.
            misses: as in `publish`.

        Returns:
            False where the claim is lost (the folder was deleted and made again).

        Raises:
            OSError: it cannot be written; the claim is still the caller's to abandon.
            CacheError: the index cannot be used.
        """
        if not self.index.is_there():
            return False
        written = {number: self.write(source, number, parts)}
        return bool(self.publish(source, written, misses=misses))

    def write(self, source: Source, number: int, parts: Sequence[Any] | Aligned) -> Written:
        """Writes a claimed piece's bytes, which `publish` is to put in their place.

        Args:
            parts: as in `store`; or all bytes in memory from which they are written past the
                system's page cache, where the file system can.

        Raises:
            OSError: as `store`.
        """
        return self.files.write(piece_name(source.number, number), parts)

    def publish(
        self, source: Source, written: Mapping[int, Written], *, misses: bool = True
    ) -> set[int]:
        """Puts written pieces in their places and says that they are ready.

        What they take is what their files take from here on. A piece whose claim is lost is left as
        it is: it may be somebody else's, and ready, by now.

        Args:
            written: what `write` returned, by the pieces' numbers; nothing of it is left behind.
            misses: whether a reader waited for them.

        Returns:
            Those that are ready; the claims of the others are lost.

        Raises:
            OSError, CacheError: as `store`; none of them is ready.
        """
        ready: set[int] = set()
        try:
            if self.index.is_there():
                with self.index.transaction() as db:
                    ready = self.claims.publish(db, source.number, source.key, written)
                    count(db, misses=len(ready) if misses else 0)
        finally:
            for number in set(written) - ready:
                self.files.throw_away(written[number])
        for number in ready:
            stamp = self.files.stamp(source.key, number)
            if stamp is not None and stamp.size == written[number].size:
                self._whole[source.number, number] = stamp
        return ready

    def abandon(self, source: Source, numbers: Iterable[int]) -> None:
        """Gives claims back that were not stored; now, or with the next claim if that fails.

        Raises:
            CacheError: the index cannot be used.
        """
        with self._owed_lock:
            self._owed += [(source, number) for number in numbers]
        self._pay()

    def _pay(self) -> None:
        """Gives back all claims that are to be given back."""
        with self._owed_lock:
            owed = list(self._owed)
        if not owed:
            return
        if self.index.is_there():  # nothing is owed to one that was deleted
            with self.index.transaction() as db:
                for source, number in owed:
                    self.claims.give_back(db, source.number, source.key, number)
        with self._owed_lock:
            self._owed = [claim for claim in self._owed if claim not in owed]

    def drop(self, source: Source, numbers: Iterable[int]) -> None:
        """Deletes pieces that are missing or damaged.

        Raises:
            CacheError: the index cannot be used.
        """
        with self.index.transaction() as db:
            for number in numbers:
                self.claims.drop(db, source.number, source.key, number)

    def shrink(self, size: int) -> tuple[int, int]:
        """Deletes pieces until all of them have `size` bytes at most, those in use excepted.

        Returns:
            The number of pieces that were deleted, and their bytes.

        Raises:
            CacheError: the index cannot be used.
        """
        pieces = freed = 0
        while True:
            with self.index.transaction() as db:
                before = pieces_known(db)
                gone = self._evictor.evict(db, total_bytes(db) - size, lambda of, number: False)
                pieces, freed = pieces + before - pieces_known(db), freed + gone
            if not gone:
                return pieces, freed

    def note_use(self, source: Source, numbers: Collection[int], hits: int | None = None) -> None:
        """Counts hits and keeps the times of last use.

        Args:
            numbers: of pieces that were used.
            hits: how often all together; None: each once.

        Raises:
            CacheError: the index cannot be used.
        """
        now = time.time()
        with self.index.transaction() as db:
            db.executemany(
                "UPDATE pieces SET used = ? WHERE source = ? AND number = ?",
                [(now, source.number, number) for number in numbers],
            )
            count(db, hits=len(numbers) if hits is None else hits)

    def tell(self, run: int, at: Run) -> None:
        """Tells other processes where a run of this one stands.

        Raises:
            CacheError: the index cannot be used.
        """
        with self.index.transaction() as db:
            self._tell(db, run, at)

    def _tell(self, db: Connection, run: int, at: Run) -> None:
        db.execute(
            "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)",
            (self.token, run, at.source, at.forecast, at.position, at.ahead),
        )

    def end_run(self, run: int) -> None:
        """Tells other processes that a run has ended.

        Raises:
            CacheError: the index cannot be used.
        """
        with self.index.transaction() as db:
            db.execute("DELETE FROM runs WHERE owner = ? AND run = ?", (self.token, run))

    def close(self) -> None:
        """Leaves the cache; claims that are open are given back. Idempotent."""
        buried = False
        with suppress(CacheError), self.index.transaction() as db:
            self.claims.bury(db, self.token)
            buried = True
        self.index.close()
        self._member.leave(forgotten=buried)

    def _all_room(self) -> int:
        with self.index.reading() as db:
            have = total_bytes(db)
        disk = shutil.disk_usage(self.path)
        return have + max(0, disk.free - int(_LEFT_FREE * disk.total))
