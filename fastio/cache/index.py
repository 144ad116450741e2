"""What a cache folder holds, in an SQLite database that all processes of the machine share.

A piece is one file of staged bytes. Its row is there before its file: `loading` while its owner
fetches it, `ready` from the commit that follows the file's rename. The sum of all rows' bytes is
kept by triggers, so that it is right after a kill at any point.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastio.errors import CacheError

VERSION = 1
LOADING, READY = 0, 1
_BUSY_S = 20.0
_CHECKPOINT_PAGES = 64
_LOG_BYTES = 512 << 10  # of the write-ahead log, above which readers are waited for,
_LOG_WAIT_MS = 100  # so long: one may be stopped
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sources (
    id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, url TEXT NOT NULL,
    fingerprint TEXT NOT NULL, rows INTEGER NOT NULL, block_rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS pieces (
    source INTEGER NOT NULL, number INTEGER NOT NULL, bytes INTEGER NOT NULL,
    size INTEGER NOT NULL, xxh3 TEXT, state INTEGER NOT NULL, owner TEXT NOT NULL,
    used REAL NOT NULL, PRIMARY KEY (source, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    owner TEXT NOT NULL, run INTEGER NOT NULL, source INTEGER NOT NULL, forecast TEXT NOT NULL,
    position INTEGER NOT NULL, ahead INTEGER NOT NULL, PRIMARY KEY (owner, run));
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO totals VALUES
    ('bytes', 0), ('hits', 0), ('misses', 0), ('fetched', 0), ('evicted', 0);
CREATE TRIGGER IF NOT EXISTS piece_added AFTER INSERT ON pieces BEGIN
    UPDATE totals SET value = value + NEW.bytes WHERE name = 'bytes'; END;
CREATE TRIGGER IF NOT EXISTS piece_gone AFTER DELETE ON pieces BEGIN
    UPDATE totals SET value = value - OLD.bytes WHERE name = 'bytes'; END;
PRAGMA user_version = {VERSION};
"""


class Index:
    """The database of one cache folder. Thread-safe.

    Args:
        path: the database's file; made if need be.

    Raises:
        CacheError: it cannot be opened or is of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log_bound = _LOG_BYTES
        self._lock = threading.RLock()
        _hold_while_forking(self._lock)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            raise CacheError(f"the cache's index {path} cannot be opened: {error}") from error

    def _open(self) -> None:
        """Opens the database; of several that make it at once, some are told that it is locked at
        once, whatever the timeout, and try again."""
        deadline_s = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._open_once()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline_s:
                    raise
            self._db.close()
            time.sleep(random.uniform(0.005, 0.05))

    def _open_once(self) -> None:
        self._db = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        # A lost commit after a power cut costs a download; the database itself stays whole.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        self._db.execute(f"PRAGMA journal_size_limit={_CHECKPOINT_PAGES * 4096}")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        elif version != VERSION:
            raise CacheError(
                f"{self.path} is of version {version}, this fastio's caches are of version "
                f"{VERSION}: choose another folder, or delete that one"
            )
        self._inode = os.stat(self.path).st_ino

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: commits, or rolls back when an error leaves it.

        Raises:
            CacheError: the database cannot be used (locked too long, no space, gone).
        """
        with self._lock:
            if not self.is_there():  # what lies around it now is another cache's
                raise CacheError(f"the cache's index {self.path} was deleted")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
                self._bound_log()
            except BaseException as error:  # Ctrl-C too: others would wait for the lock
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise CacheError(f"the cache's index {self.path}: {error}") from error
                raise

    def _bound_log(self) -> None:
        """Empties the write-ahead log where it has grown: SQLite does so by itself only when a
        commit finds nobody reading, which may never be among many processes."""
        size = _size(f"{self.path}-wal")
        if size <= self._log_bound:
            return
        self._log_bound = size + _LOG_BYTES // 4  # until which nobody waits again
        with suppress(sqlite3.Error):
            self._db.execute(f"PRAGMA busy_timeout={_LOG_WAIT_MS}")
            try:
                (busy, *_) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._db.execute(f"PRAGMA busy_timeout={int(_BUSY_S * 1000)}")
            if not busy:
                self._log_bound = _LOG_BYTES

    @property
    def bytes_on_disk(self) -> int:
        """What the database's files take."""
        return sum(_size(f"{self.path}{end}") for end in ("", "-wal", "-shm"))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The database for reading.

        Raises:
            CacheError: as `transaction`.
        """
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise CacheError(f"the cache's index {self.path}: {error}") from error

    def is_there(self) -> bool:
        """Whether the file is still the one that was opened."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Closes the database. Idempotent."""
        with self._lock, suppress(sqlite3.Error):
            self._db.close()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def total_bytes(db: sqlite3.Connection) -> int:
    """What all pieces take, those that are being fetched included."""
    (total,) = db.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
    return int(total)


def pieces_known(db: sqlite3.Connection) -> int:
    """How many pieces there are, those that are being fetched included."""
    (number,) = db.execute("SELECT count(*) FROM pieces").fetchone()
    return int(number)


def count(db: sqlite3.Connection, **counts: int) -> None:
    """Adds to totals, by their names."""
    db.executemany(
        "UPDATE totals SET value = value + ? WHERE name = ?",
        [(number, name) for name, number in counts.items()],
    )


def _hold_while_forking(lock: threading.RLock) -> None:
    """No thread is within the database while the process forks: a child would never get it back."""
    reference = weakref.ref(lock)
    held: list[threading.RLock] = []

    def before() -> None:
        alive = reference()
        if alive is not None:
            alive.acquire()
            held.append(alive)

    def after() -> None:
        while held:
            held.pop().release()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
