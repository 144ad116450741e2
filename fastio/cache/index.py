"""The index of a cache folder: an SQLite database that all processes of the machine share.

A piece is one file of cached bytes. Its row exists before its file: the state is `loading` while
the owner fetches it, and `ready` from the commit that follows the rename of the file. Triggers
maintain the sum of all pieces' bytes, so that it is correct after a kill at any point.

The database may be damaged, or written by another program. On opening, its schema and the values in
its columns are checked. Anything invalid that is met later raises a CacheError.
"""

from __future__ import annotations

import functools
import os
import random
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from fastio.cache.files import MOST
from fastio.cache.held import HeldFolder
from fastio.errors import CacheError
from fastio.runtime.lifecycle import Owner, hold_while_forking

VERSION = 4  # of the database, and of the contents of pieces, such as block records
_NAME = "index.sqlite"
_MOST = 1 << 60  # largest valid number of bytes, rows and positions
LOADING, READY = 0, 1
_BUSY_S = 20.0
_CHECKPOINT_PAGES = 64
_LOG_BYTES = 512 << 10  # of the write-ahead log; above, a checkpoint waits for readers
_LOG_WAIT_S = 0.1  # for at most this long, because a reader may be suspended
_LOG_TRY_MS = 20  # see `Index._bound_log`
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sources (
    id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, url TEXT NOT NULL,
    fingerprint TEXT NOT NULL, rows INTEGER NOT NULL, block_rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL, recoded INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS pieces (
    source INTEGER NOT NULL, number INTEGER NOT NULL, bytes INTEGER NOT NULL,
    size INTEGER NOT NULL, xxh3 TEXT, state INTEGER NOT NULL, owner TEXT NOT NULL,
    used REAL NOT NULL, PRIMARY KEY (source, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    owner TEXT NOT NULL, run INTEGER NOT NULL, source INTEGER NOT NULL, forecast TEXT NOT NULL,
    position INTEGER NOT NULL, ahead INTEGER NOT NULL, PRIMARY KEY (owner, run));
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO totals VALUES
    ('bytes', 0), ('hits', 0), ('misses', 0), ('fetched', 0), ('evicted', 0), ('damaged', 0);
CREATE TRIGGER IF NOT EXISTS piece_added AFTER INSERT ON pieces BEGIN
    UPDATE totals SET value = value + NEW.bytes WHERE name = 'bytes'; END;
CREATE TRIGGER IF NOT EXISTS piece_gone AFTER DELETE ON pieces BEGIN
    UPDATE totals SET value = value - OLD.bytes WHERE name = 'bytes'; END;
PRAGMA user_version = {VERSION};
"""


# For each table, a condition that selects rows which fastio never writes.
_WRONG_ROWS = {
    "sources": f"""
        typeof(id) <> 'integer' OR id < 0 OR typeof(key) <> 'text' OR typeof(url) <> 'text'
        OR typeof(fingerprint) <> 'text' OR typeof(rows) <> 'integer'
        OR rows NOT BETWEEN 0 AND {_MOST} OR typeof(block_rows) <> 'integer'
        OR block_rows NOT BETWEEN 0 AND {_MOST} OR typeof(bytes) <> 'integer'
        OR bytes NOT BETWEEN 0 AND {_MOST} OR typeof(recoded) <> 'integer'
        OR recoded NOT IN (0, 1) OR key <> fingerprint || '-' || block_rows
        OR length(fingerprint) NOT BETWEEN 16 AND 64 OR fingerprint GLOB '*[^0-9a-f]*'""",
    "pieces": f"""
        typeof(source) <> 'integer' OR typeof(number) <> 'integer'
        OR number NOT BETWEEN 0 AND {MOST} OR typeof(bytes) <> 'integer'
        OR bytes NOT BETWEEN 0 AND {_MOST} OR typeof(size) <> 'integer'
        OR size NOT BETWEEN 0 AND {_MOST} OR typeof(owner) <> 'text' OR typeof(used) <> 'real'
        OR NOT abs(used) < 1e15 OR typeof(state) <> 'integer' OR state NOT IN ({LOADING}, {READY})
        OR (state = {READY} AND (typeof(xxh3) <> 'text' OR length(xxh3) <> 16))""",
    "runs": f"""
        typeof(owner) <> 'text' OR typeof(run) <> 'integer' OR typeof(source) <> 'integer'
        OR typeof(forecast) <> 'text' OR typeof(position) <> 'integer'
        OR abs(position) > {_MOST} OR typeof(ahead) <> 'integer' OR abs(ahead) > {_MOST}""",
    "totals": f"""
        typeof(value) <> 'integer' OR value NOT BETWEEN 0 AND {_MOST}""",
}
# Queries for inconsistencies between tables.
_WRONG_TOGETHER = {
    "pieces of an unknown source": "SELECT 1 FROM pieces WHERE source NOT IN "
    "(SELECT id FROM sources) LIMIT 1",
    "a total that is not the sum of its pieces": "SELECT 1 FROM totals WHERE name = 'bytes' AND "
    "value <> (SELECT coalesce(sum(bytes), 0) FROM pieces)",
    "totals that are not fastio's": "SELECT 1 FROM (SELECT group_concat(name) AS names FROM "
    "(SELECT name FROM totals ORDER BY name)) WHERE names IS NOT "
    "'bytes,damaged,evicted,fetched,hits,misses'",
}
# Exceptions that code may raise when it reads a row that fastio did not write.
_NOT_OURS = (sqlite3.Error, TypeError, ValueError, OverflowError, LookupError, AttributeError)


_unclosed: list[sqlite3.Connection] = []  # see `Index.__del__`


class Index:
    """The database of one cache folder. Thread-safe. A forked child cannot use it.

    SQLite remembers in the memory of the process which files it has open and locked, and a child
    inherits that. It would not lock a file that it takes to be locked, and others would not see it.
    So the database is closed before each fork, and opened again when it is needed.

    Args:
        folder: The cache's folder. The database is created in it if needed.

    Raises:
        CacheError: If it cannot be opened, has another version, or was not written by fastio.
    """

    def __init__(self, folder: HeldFolder) -> None:
        self.path = folder.path / _NAME
        _check_files(folder)
        self._log_bound = _LOG_BYTES
        self._owner = Owner()
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._times_opened = 0
        self._inode: int | None = None  # until it was opened
        self._lock = threading.RLock()
        hold_while_forking(self._lock, self._let_go)
        try:
            self._open()
        except _NOT_OURS as error:
            raise CacheError(f"the cache's index {self.path} cannot be opened: {error}") from error

    def _open(self) -> None:
        """Opens the database and checks it; retries while another process is creating it.

        SQLite reports a database that another process is creating as locked at once, regardless of
        the timeout.
        """
        deadline_s = time.monotonic() + _BUSY_S
        while True:
            with self._lock:  # SQLite's locks must not be held when the process forks
                try:
                    return self._open_once()
                except sqlite3.OperationalError as error:
                    self._let_go()
                    if "locked" not in str(error) or time.monotonic() > deadline_s:
                        raise
            time.sleep(random.SystemRandom().uniform(0.005, 0.05))

    def _open_once(self) -> None:
        if self._inode is not None and not self.is_there():  # SQLite would create it
            raise sqlite3.OperationalError("it was deleted")
        # Transactions are begun and ended explicitly (isolation_level=None), and the lock lets one
        # thread at a time use the connection.
        db = self._db = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._times_opened += 1
        # sqlite.org/security.html recommends these two settings for files that others may have
        # written.
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA cell_size_check=ON")
        db.execute("PRAGMA journal_mode=WAL")
        # A lost commit after a power cut costs a download; the database itself stays whole.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        db.execute(f"PRAGMA journal_size_limit={_CHECKPOINT_PAGES * 4096}")
        inode = os.stat(self.path).st_ino
        if self._inode is not None:  # opened again: this process has checked it before
            if inode != self._inode:
                self._let_go()
                raise sqlite3.OperationalError("it was replaced")
            return
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        elif version != VERSION:
            raise CacheError(
                f"{self.path} has version {version}, and this fastio reads version {VERSION}: "
                "choose another folder, or delete this one"
            )
        self._check(db)
        self._inode = inode

    def _check(self, db: sqlite3.Connection) -> None:
        """Raises CacheError unless the schema and the values are those that fastio writes."""
        made_of = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
        wrong = None
        if db.execute(made_of).fetchall() != _expected(made_of):
            wrong = "tables, views or triggers that are not fastio's"
        for table, condition in () if wrong else _WRONG_ROWS.items():
            if db.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1").fetchone():
                wrong = wrong or f"rows of {table} that fastio never writes"
        for what, found in () if wrong else _WRONG_TOGETHER.items():
            if db.execute(found).fetchone():
                wrong = wrong or what
        if wrong is not None:
            self._let_go()
            raise CacheError(
                f"the cache's index {self.path} has {wrong}: it is damaged, or another program "
                "wrote it. Delete the folder, or use another one"
            )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Runs a write transaction, which commits on success and rolls back on an exception.

        Raises:
            CacheError: The database cannot be used (locked too long, disk full, deleted).
        """
        with self._lock:
            if not self.is_there():  # the files around it would belong to a newer cache
                raise CacheError(f"the cache's index {self.path} was deleted")
            db: sqlite3.Connection | None = None
            try:
                db = self._connection()
                # Takes the write lock at once. A transaction that has read before does not wait for
                # the lock, but fails with "database is locked".
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
                self._bound_log(db)
            except BaseException as error:  # Ctrl-C too, or other processes would stay locked out
                with suppress(sqlite3.Error):
                    if db is not None:
                        db.execute("ROLLBACK")
                if isinstance(error, _NOT_OURS):
                    raise CacheError(f"the cache's index {self.path}: {error}") from error
                raise

    def _bound_log(self, db: sqlite3.Connection) -> None:
        """Truncates the write-ahead log when it has grown.

        SQLite itself truncates it only if a commit finds no reader, which may never happen with
        many processes.

        A checkpoint that waits may wait in vain: it looks at a mark that is old and waits until
        nobody uses it, but a reader has made it the current one in between, which all new readers
        share. So it is tried several times.
        """
        size = _size(f"{self.path}-wal")
        if size <= self._log_bound:
            return
        self._log_bound = size + _LOG_BYTES // 4  # do not wait again before it grows this far
        with suppress(sqlite3.Error):
            deadline_s = time.monotonic() + _LOG_WAIT_S
            db.execute(f"PRAGMA busy_timeout={_LOG_TRY_MS}")
            try:
                busy = True
                while busy and time.monotonic() < deadline_s:
                    (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                db.execute(f"PRAGMA busy_timeout={int(_BUSY_S * 1000)}")
            if not busy:
                self._log_bound = _LOG_BYTES

    @property
    def bytes_on_disk(self) -> int:
        """The size of the database's files in bytes."""
        return sum(_size(f"{self.path}{end}") for end in ("", "-wal", "-shm"))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Gives access to the database for reading."""
        with self._lock:
            try:
                yield self._connection()
            except _NOT_OURS as error:
                raise CacheError(f"the cache's index {self.path}: {error}") from error

    def changes(self) -> tuple[int, ...]:
        """Returns numbers that differ from those of an earlier call if the database has changed."""
        with self.reading() as db:
            # data_version does not count the commits of this connection; total_changes does. Both
            # start again with a new connection, so the number of openings is returned too.
            (of_others,) = db.execute("PRAGMA data_version").fetchone()
            return self._times_opened, int(of_others), db.total_changes

    def _connection(self) -> sqlite3.Connection:
        """Returns the database, which is opened again after a fork. The lock is held."""
        if not self._owner.is_here:
            raise CacheError(f"the cache's index {self.path} was opened by the parent process")
        if self._closed:
            raise sqlite3.ProgrammingError("it was closed")
        if self._db is None:
            self._open()
        assert self._db is not None
        return self._db

    def _let_go(self) -> None:
        """Closes the database, which is opened again when it is needed. The lock is held."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def is_there(self) -> bool:
        """Returns whether the file at the path is still the one that was opened."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Closes the database. Idempotent."""
        with self._lock:
            self._closed = True
            self._let_go()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Under the lock: if the process forked while this thread is in SQLite, a lock of SQLite's
        # would stay held in the child. Not waiting for it: garbage may be collected on any thread,
        # in the middle of anything.
        db = self.__dict__.get("_db")
        if db is None or is_finalizing():
            return
        if self._lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._lock.release()
        else:
            _unclosed.append(db)


def _check_files(folder: HeldFolder) -> None:
    """Refuses links and unsafe files: SQLite opens the database's files by path."""
    with suppress(FileExistsError):  # create it here to set its mode; SQLite's log inherits it
        os.close(folder.create(_NAME))
    for end in ("", "-wal", "-shm", "-journal"):
        try:
            found = folder.stat(_NAME + end)
        except FileNotFoundError:
            continue
        path = folder.path / (_NAME + end)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise CacheError(
                f"the cache's index {path} is a link or not a regular file, and fastio did not "
                "create it. Delete the folder, or use another one"
            )
        folder.access.check(path, found)


@functools.cache
def _expected(made_of: str) -> list[tuple[str, ...]]:
    """Returns the schema of a newly created database."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return db.execute(made_of).fetchall()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def total_bytes(db: sqlite3.Connection) -> int:
    """Returns the bytes of all pieces, including those that are being fetched."""
    (total,) = db.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
    return int(total)


def pieces_known(db: sqlite3.Connection) -> int:
    """Returns the number of pieces, including those that are being fetched."""
    (number,) = db.execute("SELECT count(*) FROM pieces").fetchone()
    return int(number)


def count(db: sqlite3.Connection, **counts: int) -> None:
    """Adds numbers to the totals of these names."""
    db.executemany(
        "UPDATE totals SET value = value + ? WHERE name = ?",
        [(number, name) for name, number in counts.items()],
    )
