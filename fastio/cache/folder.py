"""The cache folder: pieces of remote data as files, under a budget that all processes share.

    fastio-cache.json      says that the folder is a cache; nothing is touched where it is missing
    index.sqlite           which pieces there are, who fetches what (`index`)
    members/TOKEN          a locked file a process (`members`)
    data/KEY/NNN/NUMBER    the pieces of a source
    tmp/TOKEN.N            what TOKEN is writing

A piece is claimed, fetched, checked, written to `tmp/`, renamed and then said to be ready. Room for
it is reserved by the claim, and made by deleting the pieces that are needed furthest in the future.
What a killed process left is taken back by whoever meets it next. Only files of this layout are
deleted.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from fastio.cache.direct import Aligned, write_direct
from fastio.cache.index import LOADING, READY, Index
from fastio.cache.members import (
    Member,
    is_alive,
    is_stopped,
    members,
    remove_unborn,
    token_of,
)
from fastio.errors import CacheError

Outcome = Literal["ready", "mine", "others", "stopped", "no room"]
Numbers = npt.NDArray[np.int64]
MARKER = "fastio-cache.json"
_PAGE = 4096
_FAN_OUT = 1000
_INDEX_BYTES = 1 << 20  # of the budget, for the index and folders
_LEFT_FREE = 0.05  # of the disk, where no budget is given
_RANK_ALL = 20_000  # pieces; above, victims are ranked once for this many evictions:
_RANKED = 256
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True)
class Run:
    """One process's way through a source, as it last told.

    Attributes:
        source: number of the source.
        forecast: JSON of what the order is computed from.
        position: samples of the epoch that are done.
        ahead: samples up to which pieces are being fetched.
    """

    source: int
    forecast: str
    position: int
    ahead: int


# For pieces `numbers` of a source with these runs: how many samples until each is needed. Negative:
# in use now. Infinite: not known, or never again.
NextUse = Callable[[Sequence[Run], Numbers], npt.NDArray[np.float64]]


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

    Attributes:
        index: which pieces there are.

    Raises:
        CacheError: the folder holds something else, or cannot be used.
    """

    def __init__(
        self, path: Path, budget: int | None = None, next_use: NextUse | None = None
    ) -> None:
        self.path = path
        self._data = str(path / "data")
        self._next_use = next_use
        try:
            _take_folder(path)
            self._member = Member(path / "members")
            (path / "tmp").mkdir(exist_ok=True)
            self.index = Index(path / "index.sqlite")
        except OSError as error:
            raise CacheError(f"the cache folder {path} cannot be used: {error}") from error
        self._files = itertools.count()
        self._victims: list[tuple[int, int]] = []
        self._owed: list[tuple[Source, int]] = []
        self._owed_lock = threading.Lock()
        self._bury_all()
        self.budget = self._all_room() if budget is None else budget

    def rank_by(self, next_use: NextUse) -> None:
        """Takes another ranking for evictions."""
        self._next_use = next_use

    @property
    def room(self) -> int:
        """Bytes that pieces may have: the budget, less what the index takes."""
        return max(0, self.budget - _INDEX_BYTES)

    def is_there(self) -> bool:
        """Whether the folder is still the one that was opened."""
        return self.index.is_there() and (self.path / "members" / self._member.token).exists()

    def source(self, url: str, fingerprint: str, rows: int, block_rows: int, size: int) -> Source:
        """Registers a dataset cut in blocks of so many rows.

        Its fingerprint stands for all of its bytes, so copies behind other URLs are the same
        source.

        Raises:
            CacheError: the index cannot be used.
        """
        key = f"{fingerprint}-{block_rows}"
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
        return self.piece_path(source.key, number)

    def path_of(self, source: Source, number: int) -> str:
        """`file` as a string, for those who ask often."""
        return f"{self._data}/{source.key}/{number // _FAN_OUT}/{number}"

    def piece_path(self, key: str, number: int) -> Path:
        """Where a piece's file is, if it is, by the key of its source."""
        return self.path / "data" / key / str(number // _FAN_OUT) / str(number)

    def has(self, source: Source, number: int, size: int) -> bool:
        """Whether a piece's file is there and has its size; asks the file system, not the index."""
        try:
            return os.stat(self.path_of(source, number)).st_size == size
        except OSError:
            return False

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
            needed = [n for n in sizes if self._look(db, source, n, outcomes, if_stopped)]
            # What can never fit is not worth an eviction.
            wanted = sum(n for n in (_on_disk(sizes[n]) for n in needed) if n <= self.room)
            room = self.room - self._total(db)
            if wanted > room:
                room += self._evict(
                    db,
                    wanted - room,
                    lambda of, number: of == source.number and (number in keep or number in sizes),
                )
            for number in needed:
                size = _on_disk(sizes[number])
                if size > room:
                    outcomes[number] = "no room"
                    continue
                room -= size
                db.execute(
                    "INSERT INTO pieces VALUES (?, ?, ?, ?, NULL, ?, ?, ?)",
                    (source.number, number, size, sizes[number], LOADING, self.token, time.time()),
                )
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
            False where the reservation is gone (the folder was deleted and made again).

        Raises:
            OSError: it cannot be written; the claim is still the caller's to abandon.
            CacheError: the index cannot be used.
        """
        written = {number: self.write(source, number, parts)}
        return bool(self.publish(source, written, misses=misses))

    def write(self, source: Source, number: int, parts: Sequence[Any] | Aligned) -> str:
        """Writes a claimed piece's bytes, which `publish` is to say to be ready.

        Args:
            parts: as in `store`; or all bytes in memory from which they are written past the
                system's page cache, where the file system can.

        Returns:
            The xxh3_64 of the bytes, as 16 hexadecimal digits.

        Raises:
            OSError: as `store`.
        """
        temporary = self.path / "tmp" / f"{self.token}.{next(self._files)}-{number}"
        target = self.file(source, number)
        digest = xxhash.xxh3_64()
        try:
            if not isinstance(parts, Aligned):
                _write_file(temporary, parts, digest)
            else:
                digest.update(parts.data)  # from the processor's cache, which the disk would empty
                if not write_direct(temporary, parts):
                    _write_file(temporary, [parts.data])
            try:
                os.rename(temporary, target)
            except FileNotFoundError:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return digest.hexdigest()

    def publish(
        self, source: Source, written: Mapping[int, str], *, misses: bool = True
    ) -> set[int]:
        """Says that written pieces are ready. What they take is what their files take from here on.

        Args:
            written: what `write` returned, by the pieces' numbers.
            misses: whether a reader waited for them.

        Returns:
            Those that are; the others' reservations are gone.

        Raises:
            CacheError: the index cannot be used.
        """
        ready = set()
        with self.index.transaction() as db:
            for number, xxh3 in written.items():
                done = db.execute(
                    "UPDATE pieces SET state = ?, xxh3 = ?, used = ? "
                    "WHERE source = ? AND number = ? AND owner = ? AND state = ?",
                    (READY, xxh3, time.time(), source.number, number, self.token, LOADING),
                ).rowcount
                if not done:
                    continue
                ready.add(number)
                self._fit(db, source, number)
                _count(db, misses=int(misses))
                db.execute(
                    "UPDATE totals SET value = value + (SELECT size FROM pieces WHERE source = ? "
                    "AND number = ?) WHERE name = 'fetched'",
                    (source.number, number),
                )
        for number in set(written) - ready:
            self._unlink(source.key, number)
        return ready

    def _fit(self, db: Connection, source: Source, number: int) -> None:
        """Brings a piece's reservation to the size of its file, which may be smaller."""
        with suppress(OSError):
            size = os.stat(self.file(source, number)).st_size
            db.execute(
                "UPDATE totals SET value = value + ? - (SELECT bytes FROM pieces WHERE source = ? "
                "AND number = ?) WHERE name = 'bytes'",
                (_on_disk(size), source.number, number),
            )
            db.execute(
                "UPDATE pieces SET bytes = ?, size = ? WHERE source = ? AND number = ?",
                (_on_disk(size), size, source.number, number),
            )

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
        with self.index.transaction() as db:
            for source, number in owed:
                gone = db.execute(
                    "DELETE FROM pieces WHERE source = ? AND number = ? AND owner = ? "
                    "AND state = ?",
                    (source.number, number, self.token, LOADING),
                ).rowcount
                if gone:
                    self._unlink(source.key, number)  # renamed, and not said to be ready
        with self._owed_lock:
            self._owed = [claim for claim in self._owed if claim not in owed]

    def drop(self, source: Source, numbers: Iterable[int]) -> None:
        """Deletes pieces that are missing or damaged.

        Raises:
            CacheError: the index cannot be used.
        """
        with self.index.transaction() as db:
            for number in numbers:
                db.execute(
                    "DELETE FROM pieces WHERE source = ? AND number = ? AND state = ?",
                    (source.number, number, READY),
                )
                claimed = db.execute(
                    "SELECT 1 FROM pieces WHERE source = ? AND number = ?", (source.number, number)
                ).fetchone()
                if not claimed:  # a file that the index does not know goes too
                    self._unlink(source.key, number)

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
            _count(db, hits=len(numbers) if hits is None else hits)

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
            self._bury(db, self.token)
            buried = True
        self.index.close()
        self._member.leave(forgotten=buried)

    # --- What is there ----------------------------------------------------------------------------

    def _look(
        self,
        db: Connection,
        source: Source,
        number: int,
        outcomes: dict[int, Outcome],
        if_stopped: Outcome,
    ) -> bool:
        """Whether a piece is nobody's yet; else its outcome is noted."""
        row = db.execute(
            "SELECT state, owner FROM pieces WHERE source = ? AND number = ?",
            (source.number, number),
        ).fetchone()
        if row is None:
            return True
        if row[0] == READY:
            outcomes[number] = "ready"
        elif row[1] == self.token or is_alive(self.path / "members", row[1]):
            outcomes[number] = if_stopped if is_stopped(row[1]) else "others"
        else:
            self._bury(db, row[1])
            return True
        return False

    def _total(self, db: Connection) -> int:
        (total,) = db.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
        return int(total)

    def _all_room(self) -> int:
        with self.index.reading() as db:
            have = self._total(db)
        disk = shutil.disk_usage(self.path)
        return have + max(0, disk.free - int(_LEFT_FREE * disk.total))

    @property
    def token(self) -> str:
        return self._member.token

    # --- Making room ------------------------------------------------------------------------------

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
                before = _pieces(db)
                gone = self._evict(db, self._total(db) - size, lambda of, number: False)
                pieces, freed = pieces + before - _pieces(db), freed + gone
            if not gone:
                return pieces, freed

    def _evict(self, db: Connection, wanted: int, kept: Callable[[int, int], bool]) -> int:
        """Deletes what is needed furthest in the future; returns the bytes that came free."""
        freed = 0
        if not self._victims and wanted > 0:
            self._victims = self._ranked(db)
        keys: dict[int, str] = dict(db.execute("SELECT id, key FROM sources").fetchall())
        while freed < wanted and self._victims:
            victim = self._victims.pop()
            if kept(*victim):
                continue
            row = db.execute(
                "SELECT bytes FROM pieces WHERE source = ? AND number = ? AND state = ?",
                (*victim, READY),
            ).fetchone()
            if row is None:
                continue
            self._unlink(keys[victim[0]], victim[1])
            db.execute("DELETE FROM pieces WHERE source = ? AND number = ?", victim)
            freed += int(row[0])
            _count(db, evicted=1)
        if _pieces(db) <= _RANK_ALL:
            self._victims = []  # so that what has been used since counts the next time
        return freed

    def _ranked(self, db: Connection) -> list[tuple[int, int]]:
        """Pieces that may go, the best last."""
        for token in self._dead(db):
            self._bury(db, token)
        distances, victims = [], []
        for (source,) in db.execute("SELECT id FROM sources").fetchall():
            rows = db.execute(
                "SELECT number, used FROM pieces WHERE source = ? AND state = ?", (source, READY)
            ).fetchall()
            if not rows:
                continue
            numbers = np.array([row[0] for row in rows], np.int64)
            used = np.array([row[1] for row in rows], np.float64)
            until = self._until(db, source, numbers)
            known = np.isfinite(until)
            # The unknown ones go first, those that were used longest ago before the others.
            distance = np.where(known, until, 1e18 + 1e9 * (time.time() + 1e6 - used))
            sure = until >= 0
            distances.append(distance[sure])
            victims += [(source, number) for number in numbers[sure].tolist()]
        if not victims:
            return []
        order = np.argsort(np.concatenate(distances), kind="stable")
        return [victims[place] for place in order[-_RANK_ALL:].tolist()][-_bound(len(victims)) :]

    def _until(self, db: Connection, source: int, numbers: Numbers) -> npt.NDArray[np.float64]:
        found = db.execute(
            "SELECT forecast, position, ahead FROM runs WHERE source = ?", (source,)
        ).fetchall()
        runs = [Run(source, *row) for row in found]
        if not runs or self._next_use is None:
            return np.full(len(numbers), np.inf)
        return self._next_use(runs, numbers)

    # --- What is left of the dead -----------------------------------------------------------------

    def _bury_all(self) -> None:
        """Takes back what killed processes have left."""
        folder = self.path / "members"
        dead = {token for token in members(folder) if not is_alive(folder, token)}
        with self.index.reading() as db:
            dead |= self._dead(db)
        if dead:
            with self.index.transaction() as db:
                for token in dead:
                    self._bury(db, token)
        remove_unborn(folder)
        with suppress(OSError):
            for name in os.listdir(self.path / "tmp"):
                owner = token_of(name)
                if owner is not None and not is_alive(folder, owner):
                    with suppress(OSError):
                        (self.path / "tmp" / name).unlink()

    def _dead(self, db: Connection) -> set[str]:
        """Members that are gone and have runs or claims in the index."""
        owners = db.execute(
            "SELECT owner FROM runs UNION SELECT owner FROM pieces WHERE state = ?", (LOADING,)
        ).fetchall()
        folder = self.path / "members"
        return {owner for (owner,) in owners if owner != self.token and not is_alive(folder, owner)}

    def _bury(self, db: Connection, token: str) -> None:
        rows = db.execute(
            "SELECT key, number FROM pieces JOIN sources ON sources.id = pieces.source "
            "WHERE owner = ? AND state = ?",
            (token, LOADING),
        ).fetchall()
        for key, number in rows:
            self._unlink(key, number)  # renamed, and not yet said to be ready
        db.execute("DELETE FROM pieces WHERE owner = ? AND state = ?", (token, LOADING))
        db.execute("DELETE FROM runs WHERE owner = ?", (token,))
        with suppress(OSError):
            for path in (self.path / "tmp").glob(f"{token}.*"):
                path.unlink()
        if token != self.token:
            with suppress(OSError):
                (self.path / "members" / token).unlink()

    def _unlink(self, key: str, number: int) -> None:
        with suppress(OSError):
            self.piece_path(key, number).unlink()


def _pieces(db: Connection) -> int:
    (count,) = db.execute("SELECT count(*) FROM pieces").fetchone()
    return int(count)


def _bound(pieces: int) -> int:
    return pieces if pieces <= _RANK_ALL else _RANKED


def _on_disk(size: int) -> int:
    """Bytes that a file of this size takes."""
    return -(-size // _PAGE) * _PAGE


def _count(db: Connection, **counts: int) -> None:
    db.executemany(
        "UPDATE totals SET value = value + ? WHERE name = ?",
        [(count, name) for name, count in counts.items()],
    )


def _write_file(path: Path, parts: Sequence[Any], digest: Any = None) -> None:
    """Writes parts that follow one another, and adds them to a hash."""
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            data = memoryview(part).cast("B")
            for begin in range(0, data.nbytes, _CHUNK_BYTES):
                # Hashed and then written from the processor's cache.
                chunk = data[begin : begin + _CHUNK_BYTES]
                if digest is not None:
                    digest.update(chunk)
                _write_all(file.fileno(), chunk)


def _write_all(descriptor: int, data: memoryview) -> None:
    data = data.cast("B")
    while data:
        data = data[os.write(descriptor, data) :]


def _take_folder(path: Path) -> None:
    """Makes a cache folder of an empty or missing one.

    Raises:
        CacheError: it holds something else.
    """
    path.mkdir(parents=True, exist_ok=True)
    marker = path / MARKER
    if marker.exists():
        return
    # What an opening that was killed, or one that is under way, may have made.
    ours = {MARKER, "members", "tmp", "data"}
    others = [name for name in os.listdir(path) if name not in ours and "index.sqlite" not in name]
    others = [name for name in others if not name.startswith(f".{MARKER}")]
    if others:
        raise CacheError(
            f"{path} is no cache of fastio's, and not empty ({others[0]!r}): give an empty folder "
            "or one that does not exist yet"
        )
    temporary = path / f".{MARKER}.{secrets.token_hex(6)}"
    temporary.write_text(json.dumps({"fastio_cache": 1}) + "\n")
    os.rename(temporary, marker)
