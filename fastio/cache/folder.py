"""The cache folder: pieces of remote data as files, within a byte budget shared by all processes.

The life of a piece: a process claims it, which reserves space; the process fetches and checks the
bytes, and writes them to a temporary file; one transaction then renames the file into place and
marks the piece as ready. If space is short, the claim evicts the pieces that are needed furthest in
the future. If a process is killed, another process that finds its claims releases them.

    files       paths, writing and deleting
    claims      which process fetches which piece, and cleaning up after dead processes
    eviction    which pieces are deleted when space is needed
    index       the SQLite database that records all of it

This module combines them: each method runs one transaction of the index, or a few.
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

from fastio.cache.claims import Claims, Outcome, piece_name
from fastio.cache.direct import Aligned
from fastio.cache.eviction import Consumer, Evictor, NextUse
from fastio.cache.files import Files, FileStamp, Written, on_disk, take_folder
from fastio.cache.held import Access
from fastio.cache.index import READY, Index, count, pieces_known, total_bytes
from fastio.cache.members import Member
from fastio.errors import CacheError

_INDEX_BYTES = 1 << 20  # part of the budget that is set aside for the index and the folders
_INDEX_MARGIN = 128 << 10  # for folders, and for the growth of the index in one transaction
_LEFT_FREE = 0.05  # share of the disk that stays free if no budget is given
State = Literal["whole", "missing", "damaged"]  # the state of a piece


@dataclass(frozen=True)
class Source:
    """A remote dataset: its id in the index, the name of its folder, and its URL."""

    number: int
    key: str
    url: str


class CacheFolder:
    """An open cache folder. Thread-safe within one process; a forked child opens its own.

    Methods raise CacheError if the index cannot be used.

    Args:
        path: The folder. It is created if needed. If it exists and is no cache, it must be empty.
        budget: The total size of all pieces in bytes. If None, what the cache already holds plus
            the free space of the disk, less 5% of the disk's size.
        shared: Whether the folder's group may use the cache too.

    Attributes:
        index: The database of pieces.
        files: The files of the pieces.
        claims: The claims of this process.

    Raises:
        CacheError: If the folder holds other data, belongs to another user, or cannot be used.
    """

    def __init__(
        self,
        path: Path,
        budget: int | None = None,
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
        self._evictor = Evictor(self.files, self.claims)
        self._owed: list[tuple[Source, int]] = []
        self._owed_lock = threading.Lock()
        self._whole: dict[tuple[int, int], FileStamp] = {}  # pieces whose hash was verified
        self.claims.bury_all(self.index)
        self.budget = self._all_room() if budget is None else budget

    def rank_by(self, next_use: NextUse) -> None:
        """Sets the function that ranks pieces for eviction.

        Without one, the least recently used piece is evicted first.
        """
        self._evictor.next_use = next_use

    @property
    def token(self) -> str:
        """The token that identifies this process among the members."""
        return self._member.token

    @property
    def room(self) -> int:
        """The bytes available for pieces: the budget less what is set aside for the index."""
        return max(0, self.budget - _INDEX_BYTES)

    def is_there(self) -> bool:
        """Returns whether the folder that was opened still exists."""
        return self.index.is_there() and self.files.members.has(self.token)

    def source(
        self,
        url: str,
        fingerprint: str,
        rows: int,
        block_rows: int,
        size: int,
        *,
        recoded: bool = False,
    ) -> Source:
        """Registers a dataset that is cut in blocks of `block_rows` rows.

        The fingerprint is that of the dataset's first version, so copies at other URLs and later
        versions are the same source. If the contents of a block differ between versions, it has
        a piece with another number for each, see `edition`. `recoded` says whether the pieces
        contain recoded images. `rows` and `size` are stored for the version that was registered
        last.
        """
        key = f"{fingerprint}-{block_rows}"
        self.files.piece(key, 0)  # raises if the key is not valid as a folder's name
        with self.index.transaction() as db:
            db.execute(
                "INSERT INTO sources (key, url, fingerprint, rows, block_rows, bytes, recoded) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET rows = excluded.rows, bytes = excluded.bytes",
                (key, url, fingerprint, rows, block_rows, size, int(recoded)),
            )
            (number,) = db.execute("SELECT id FROM sources WHERE key = ?", (key,)).fetchone()
        return Source(int(number), key, url)

    def block_rows(self, fingerprint: str) -> int | None:
        """Returns the rows per block of the first source with a fingerprint, or None."""
        with self.index.reading() as db:
            found = db.execute(
                "SELECT block_rows FROM sources WHERE fingerprint = ? ORDER BY id LIMIT 1",
                (fingerprint,),
            ).fetchone()
            return None if found is None else int(found[0])

    def ready(self, source: Source) -> list[int]:
        """Returns the numbers of the pieces of a source that are ready, in ascending order."""
        with self.index.reading() as db:
            found = db.execute(
                "SELECT number FROM pieces WHERE source = ? AND state = ? ORDER BY number",
                (source.number, READY),
            ).fetchall()
            return [int(number) for (number,) in found]

    def file(self, source: Source, number: int) -> Path:
        """Returns the path of a piece's file, whether or not the file exists."""
        return Path(self.path_of(source, number))

    def path_of(self, source: Source, number: int) -> str:
        """Returns the same path as `file`, as a string. Faster for frequent calls."""
        return self.files.piece(source.key, number)

    def exists(self, source: Source, number: int, size: int) -> bool:
        """Returns whether a piece's file exists and has this size. Its contents are not checked."""
        stamp = self.files.stamp(source.key, number)
        return stamp is not None and stamp.size == size

    def has(self, source: Source, number: int, size: int | None = None) -> bool:
        """Returns whether a piece exists and is intact. `look` also says what is wrong."""
        return self.look(source, number, size) == "whole"

    def look(self, source: Source, number: int, size: int | None = None) -> State:
        """Checks that a piece can be read and that it holds what was written.

        The first time that this process asks for a piece, and again after its file has changed, the
        whole file is compared with the hash in the index. A piece that differs is deleted and
        counted as damaged. The caller may then claim it again.

        Args:
            source, number: The piece.
            size: The expected size in bytes. If None, the size in the index.

        Returns:
            "whole", "missing" or "damaged".
        """
        stamp = self.files.stamp(source.key, number)
        if stamp is None:
            return "missing"
        if self._whole.get((source.number, number)) == stamp and size in (None, stamp.size):
            return "whole"
        expected = self._expected(source, number)
        if expected is None:
            return "missing"  # the index does not list it as ready: the next claim rewrites it
        try:
            stamp, xxh3 = self.files.digest(source.key, number)
        except FileNotFoundError:
            return "missing"
        except CacheError:
            raise
        except OSError:  # the disk fails to read it: a stamp that matches no piece
            stamp, xxh3 = FileStamp(0, -1, 0, 0), ""
        if (stamp.size, xxh3) == expected and size in (None, stamp.size):
            self._whole[source.number, number] = stamp
            return "whole"
        return "damaged" if self.drop_damaged(source, number, expected[1]) else "missing"

    def _expected(self, source: Source, number: int) -> tuple[int, str] | None:
        """Returns the size and hash of a ready piece; None if the index has no such piece."""
        with self.index.reading() as db:
            found = db.execute(
                "SELECT size, xxh3 FROM pieces WHERE source = ? AND number = ? AND state = ?",
                (source.number, number, READY),
            ).fetchone()
            return None if found is None else (int(found[0]), str(found[1]))

    def drop_damaged(self, source: Source, number: int, xxh3: str) -> bool:
        """Deletes a piece whose file does not have the hash `xxh3` that is in the index.

        Returns:
            False if it was evicted or replaced meanwhile.
        """
        with self.index.transaction() as db:
            dropped = self.claims.drop_ready(db, source.number, source.key, number, xxh3)
            count(db, damaged=int(dropped))
        return dropped

    def claim(
        self,
        source: Source,
        sizes: Mapping[int, int],
        keep: Collection[int] = (),
        told: Mapping[int, Consumer] | None = None,
        if_stopped: Outcome = "no room",
        unneeded: bool = False,
    ) -> dict[int, Outcome]:
        """Claims pieces that this process needs.

        The outcome of each piece is one of:

        - "ready": the piece is in the cache.
        - "mine": the caller has the claim. It must fetch the piece and call `store` or `abandon`.
        - "others": another thread or process is fetching the piece.
        - "no room": there is no space, because all that could be evicted is needed sooner. The
          caller reads without the cache.

        A process that is suspended (SIGSTOP, Ctrl-Z) keeps its claims and reserved space, because
        it may continue at any time, even in the middle of a write. A caller that cannot wait for it
        reads without the cache.

        Args:
            source: The source of the pieces.
            sizes: The size in bytes of each piece, by number.
            keep: Pieces of the source that must not be evicted.
            told: Positions of this process's runs, which are recorded as by `tell`.
            if_stopped: The outcome of pieces that a suspended process is fetching.
            unneeded: Whether to evict only pieces that no run is known to need.

        Returns:
            The outcome of each piece, by number.
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
            # Do not evict anything for a piece that is larger than the whole budget.
            wanted = sum(size for size in needed.values() if size <= self.room)
            # If the index outgrows its share of the budget, pieces have to give way.
            grown = max(0, self.index.bytes_on_disk + _INDEX_MARGIN - _INDEX_BYTES)
            room = self.room - grown - total_bytes(db)
            if wanted > room:
                room += self._evictor.evict(
                    db,
                    wanted - room,
                    lambda of, number: of == source.number and (number in keep or number in sizes),
                    unneeded,
                )
            for number, size in needed.items():
                if size > room:
                    outcomes[number] = "no room"
                    continue
                room -= size
                self.claims.reserve(db, source.number, number, sizes[number])
                outcomes[number] = "mine"
        return outcomes

    def enlarge(self, source: Source, number: int, size: int) -> bool:
        """Changes the reservation of a claimed piece to `size` bytes, without evicting anything.

        Returns:
            False if there is no room, or the claim is lost.
        """
        with self.index.transaction() as db:
            reserved = self.claims.reserved(db, source.number, number)
            if reserved is None:
                return False
            more = on_disk(size) - reserved
            if more > 0 and more > self.room - total_bytes(db):
                return False
            self.claims.resize(db, source.number, number, size)
            # The triggers of the index count inserted and deleted rows only, so the change of size
            # is counted here.
            count(db, bytes=more)
            return True

    def store(
        self, source: Source, number: int, parts: Sequence[Any], *, misses: bool = True
    ) -> bool:
        """Writes the bytes of a claimed piece and marks it as ready; see `write` and `publish`.

        Returns:
            False if the claim is lost because the folder was deleted and created again.

        Raises:
            OSError: The file cannot be written. The caller keeps the claim and must abandon it.
        """
        if not self.index.is_there():
            return False
        written = {number: self.write(source, number, parts)}
        return bool(self.publish(source, written, misses=misses))

    def write(self, source: Source, number: int, parts: Sequence[Any] | Aligned) -> Written:
        """Writes the bytes of a claimed piece to a temporary file. `publish` moves it into place.

        Args:
            source: The source of the piece.
            number: The number of the piece.
            parts: As for `store`; or an `Aligned` buffer, which is written with direct I/O if the
                file system supports it.

        Raises:
            OSError: As for `store`.
        """
        return self.files.write(piece_name(source.number, number), parts)

    def publish(
        self, source: Source, written: Mapping[int, Written], *, misses: bool = True
    ) -> set[int]:
        """Moves written pieces into place and marks them as ready.

        From here on the sizes of their files count against the budget, not the reserved sizes. A
        piece whose claim is lost is not touched, because another process may have published it.

        Args:
            source: The source of the pieces.
            written: What `write` returned for each piece, by number. Temporary files that are not
                published are deleted.
            misses: Whether to count the pieces as cache misses, that is, a reader waited for them.

        Returns:
            The numbers of the pieces that are ready. The claims of the others are lost.

        Raises:
            OSError: A file cannot be moved. No piece is ready in this case.
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
        # These pieces were hashed while they were written, so they are not read again to be
        # verified.
        for number in ready:
            stamp = self.files.stamp(source.key, number)
            if stamp is not None and stamp.size == written[number].size:
                self._whole[source.number, number] = stamp
        return ready

    def abandon(self, source: Source, numbers: Iterable[int]) -> None:
        """Releases claims of pieces that were not stored; after an error the next claim does."""
        with self._owed_lock:
            self._owed += [(source, number) for number in numbers]
        self._pay()

    def _pay(self) -> None:
        """Releases all claims that `abandon` has queued."""
        # The queue is emptied only after the commit: claims that a failed transaction could not
        # release are released with the next ones, instead of blocking their pieces for this
        # process's lifetime.
        with self._owed_lock:
            owed = list(self._owed)
        if not owed:
            return
        if self.index.is_there():  # a deleted index holds no claims
            with self.index.transaction() as db:
                for source, number in owed:
                    self.claims.give_back(db, source.number, source.key, number)
        with self._owed_lock:
            self._owed = [claim for claim in self._owed if claim not in owed]

    def drop(self, source: Source, numbers: Iterable[int]) -> None:
        """Deletes pieces that are missing or damaged."""
        with self.index.transaction() as db:
            for number in numbers:
                self.claims.drop(db, source.number, source.key, number)

    def shrink(self, size: int) -> tuple[int, int]:
        """Deletes pieces that are not in use until they take at most `size` bytes.

        Returns:
            The number of deleted pieces and their bytes.
        """
        pieces = freed = 0
        while True:
            with self.index.transaction() as db:
                # In a large cache, one call of `evict` deletes at most a few hundred pieces.
                before = pieces_known(db)
                gone = self._evictor.evict(db, total_bytes(db) - size, lambda of, number: False)
                pieces, freed = pieces + before - pieces_known(db), freed + gone
            if not gone:
                return pieces, freed

    def note_use(self, source: Source, numbers: Collection[int], hits: int | None = None) -> None:
        """Counts cache hits (by default one per piece) and records the time of last use."""
        now = time.time()
        with self.index.transaction() as db:
            db.executemany(
                "UPDATE pieces SET used = ? WHERE source = ? AND number = ?",
                [(now, source.number, number) for number in numbers],
            )
            count(db, hits=len(numbers) if hits is None else hits)

    def tell(self, run: int, at: Consumer) -> None:
        """Records the position of one of this process's runs, which other processes can read."""
        with self.index.transaction() as db:
            self._tell(db, run, at)

    def _tell(self, db: Connection, run: int, at: Consumer) -> None:
        db.execute(
            "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)",
            (self.token, run, at.source, at.forecast, at.position, at.ahead),
        )

    def end_run(self, run: int) -> None:
        """Deletes the record of a run that has ended."""
        with self.index.transaction() as db:
            db.execute("DELETE FROM runs WHERE owner = ? AND run = ?", (self.token, run))

    def close(self) -> None:
        """Closes the cache and releases open claims. Idempotent."""
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
