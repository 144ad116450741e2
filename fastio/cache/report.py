"""Status and maintenance of a cache folder: status, prune, clear, verify.

All functions are safe while other processes use the folder. Pieces that those are fetching are not
touched. They raise CacheError if the index cannot be used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from sqlite3 import Connection

from fastio.cache.editions import BLOCK_SQL
from fastio.cache.files import MARKER
from fastio.cache.folder import CacheFolder, Source
from fastio.cache.index import LOADING, READY
from fastio.cache.members import is_alive, members
from fastio.errors import CacheError
from fastio.runtime.ahead import in_order
from fastio.shown import without_secrets
from fastio.store.urls import absolute_path

_READERS = 4
# Indexes of tars and of JPEG files are stored as sources without rows and bytes.
_IS_INDEX = "sources.rows = 0 AND sources.bytes = 0"
_AT_ONCE = 1000  # pieces that one transaction deletes


@dataclass(frozen=True)
class CachedDataset:
    """What a cache holds of one dataset.

    Attributes:
        url: The URL from which it was first read, without credentials.
        fingerprint: The fingerprint of its first version, which is the same for copies at other
            URLs and for later versions.
        rows: The number of rows of the whole dataset, in the version that was opened last.
        pieces: The number of its files in the cache.
        bytes: The size of these files on the disk.
        share: The fraction of the dataset that is cached, 0 to 1.
        recoded: Whether the files contain images that were recoded to block records.
    """

    url: str
    fingerprint: str
    rows: int
    pieces: int
    bytes: int
    share: float
    recoded: bool = False


@dataclass(frozen=True)
class CacheStatus:
    """The contents of a cache folder. The budget is not stored in it: each process sets its own.

    Attributes:
        path: The folder.
        bytes: The size of all pieces on the disk, including those that are being fetched.
        pieces, claims: The number of pieces that are ready, and that are being fetched.
        processes: The number of other processes that have the folder open.
        free_bytes: The free space of the folder's disk.
        hits, misses: The number of pieces that readers found in the cache, or had to wait for.
        fetched_bytes: The bytes fetched since the cache was created.
        evicted, damaged: The number of pieces deleted to free space, or because of damage.
        indexes, index_bytes: The number and size of the indexes of tars and JPEG files.
        datasets: What the cache holds of each dataset.
    """

    path: str
    bytes: int
    pieces: int
    claims: int
    processes: int
    free_bytes: int
    hits: int
    misses: int
    fetched_bytes: int
    evicted: int
    damaged: int
    indexes: int
    index_bytes: int
    datasets: list[CachedDataset] = field(default_factory=list)

    @property
    def hit_rate(self) -> float | None:
        """The fraction of requested pieces that were cached, 0 to 1; None without requests."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass(frozen=True)
class Removed:
    """The number of deleted pieces, and the bytes that they took on the disk."""

    pieces: int
    bytes: int


@dataclass(frozen=True)
class DamagedPiece:
    """A piece that did not match the index and was deleted: its dataset's URL, path, problem."""

    url: str
    path: str
    problem: str


@dataclass(frozen=True)
class CacheCheck:
    """The result of checking a cache.

    Attributes:
        pieces, bytes: The number of pieces that were checked, and the bytes that were read.
        damaged: The pieces that did not match the index. They were deleted.
        strays: The files without an entry in the index. They were deleted.
    """

    pieces: int
    bytes: int
    damaged: list[DamagedPiece] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Piece:
    """A ready piece, as the index describes it."""

    source: Source
    number: int
    size: int
    xxh3: str


def is_cache(path: Path) -> bool:
    """Returns whether a folder is a cache. Opening it would turn it into one.

    False also if this user may not look into the folder.
    """
    return os.path.isfile(path / MARKER)  # Path.is_file raises some errors


def check_is_cache(path: Path) -> None:
    """Raises CacheError unless a folder is a cache."""
    if not is_cache(path):
        found = f"is not a fastio cache: it has no file {MARKER}"
        raise CacheError(f"{path} {found if path.exists() else 'does not exist'}")


def status(folder: CacheFolder) -> CacheStatus:
    """Returns what a cache holds."""
    with folder.index.reading() as db:
        totals = dict(db.execute("SELECT name, value FROM totals").fetchall())
        counted = "SELECT count(*) FROM pieces WHERE state = ?"
        ((pieces,), (claims,)) = (db.execute(counted, (s,)).fetchone() for s in (READY, LOADING))
        indexes, index_bytes = db.execute(
            "SELECT count(*), coalesce(sum(pieces.bytes), 0) FROM pieces JOIN sources "
            f"ON sources.id = pieces.source WHERE state = ? AND {_IS_INDEX}",
            (READY,),
        ).fetchone()
        return CacheStatus(
            path=str(folder.path),
            bytes=totals["bytes"],
            pieces=pieces,
            claims=claims,
            processes=len(_others(folder)),
            free_bytes=shutil.disk_usage(folder.path).free,
            hits=totals["hits"],
            misses=totals["misses"],
            fetched_bytes=totals["fetched"],
            evicted=totals["evicted"],
            damaged=totals["damaged"],
            indexes=indexes,
            index_bytes=index_bytes,
            datasets=_datasets(db),
        )


def _datasets(db: Connection) -> list[CachedDataset]:
    """Merges the sources of each fingerprint: one for each block size, and one for the heads."""
    rows = db.execute(
        "SELECT fingerprint, url, rows, block_rows, sources.bytes, recoded, count(pieces.number), "
        f"count(DISTINCT {BLOCK_SQL}), total(pieces.bytes), total(size) "
        "FROM sources JOIN pieces ON pieces.source = sources.id "
        f"WHERE state = ? AND NOT ({_IS_INDEX}) GROUP BY sources.id ORDER BY sources.id",
        (READY,),
    ).fetchall()
    found: dict[str, CachedDataset] = {}
    for fingerprint, url, total, block_rows, nbytes, recoded, pieces, blocks, on_disk, size in rows:
        staged = blocks * block_rows / max(1, total) if block_rows else size / max(1, nbytes)
        share = min(1.0, staged)
        before = found.get(fingerprint)
        if before is not None:
            pieces, on_disk = pieces + before.pieces, on_disk + before.bytes
            share, url = max(share, before.share), before.url
        found[fingerprint] = CachedDataset(
            url, fingerprint, total, pieces, int(on_disk), share, bool(recoded)
        )
    return sorted(found.values(), key=lambda dataset: dataset.url)


def clear(folder: CacheFolder, url: str | None = None) -> Removed:
    """Deletes all pieces, or those of one dataset; CacheError if there are none of it."""
    given = () if url is None else (url, absolute_path(url))  # as local data is known
    names = {without_secrets(name).rstrip("/") for name in given}
    with folder.index.reading() as db:
        sources = [
            (number, key)
            for number, key, of in db.execute("SELECT id, key, url FROM sources").fetchall()
            if url is None or of.rstrip("/") in names
        ]
        if url is not None and not sources:
            there = sorted({u for (u,) in db.execute("SELECT url FROM sources").fetchall()})
            raise CacheError(
                f"{folder.path} has no pieces of {without_secrets(url)}; it has "
                f"{', '.join(there) if there else 'no datasets'}"
            )
    pieces = freed = 0
    for number, key in sources:
        while True:
            gone, nbytes = _clear_some(folder, number, key)
            pieces, freed = pieces + gone, freed + nbytes
            if gone < _AT_ONCE:
                break
    _forget_sources(folder, sources)
    return Removed(pieces, freed)


def _clear_some(folder: CacheFolder, source: int, key: str) -> tuple[int, int]:
    with folder.index.transaction() as db:
        rows = db.execute(
            "SELECT number, bytes FROM pieces WHERE source = ? AND state = ? LIMIT ?",
            (source, READY, _AT_ONCE),
        ).fetchall()
        for number, _ in rows:
            folder.files.unlink(key, number)
        db.executemany(
            "DELETE FROM pieces WHERE source = ? AND number = ?", [(source, n) for n, _ in rows]
        )
    return len(rows), sum(nbytes for _, nbytes in rows)


def _forget_sources(folder: CacheFolder, sources: list[tuple[int, str]]) -> None:
    """Deletes empty sources and their folders, unless another process has the cache open."""
    with folder.index.transaction() as db:
        # Another process may have looked up the number of such a source, and claim pieces of it
        # later.
        if _others(folder):
            return
        for number, key in sources:
            if db.execute("SELECT 1 FROM pieces WHERE source = ?", (number,)).fetchone():
                continue
            db.execute("DELETE FROM sources WHERE id = ?", (number,))
            folder.files.forget(key)


def verify(folder: CacheFolder, advance: Callable[[int], object] | None = None) -> CacheCheck:
    """Compares every piece with the index, and deletes damaged pieces and stray files."""
    strays = list(_strays(folder))
    with folder.index.reading() as db:
        rows = db.execute(
            "SELECT source, key, url, number, size, xxh3 FROM pieces "
            "JOIN sources ON sources.id = pieces.source WHERE state = ?",
            (READY,),
        ).fetchall()
        pieces = [
            _Piece(Source(int(source), str(key), str(url)), int(number), int(size), str(xxh3))
            for source, key, url, number, size, xxh3 in rows
        ]
    damaged = []
    problems = in_order(partial(_problem, folder), pieces, _READERS)
    for piece, problem in zip(pieces, problems, strict=True):
        # A piece that is no longer in the index was evicted meanwhile, so it is not reported.
        if problem is not None and folder.drop_damaged(piece.source, piece.number, piece.xxh3):
            path = folder.path_of(piece.source, piece.number)
            damaged.append(DamagedPiece(piece.source.url, path, problem))
        if advance is not None:
            advance(piece.size)
    return CacheCheck(len(pieces), sum(piece.size for piece in pieces), damaged, strays)


def _problem(folder: CacheFolder, piece: _Piece) -> str | None:
    """Returns what is wrong with a piece's file; None if nothing is."""
    try:
        stamp, xxh3 = folder.files.digest(piece.source.key, piece.number)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    if stamp.size != piece.size:
        return f"it has {stamp.size:,} bytes, expected {piece.size:,}"
    if xxh3 != piece.xxh3:
        return f"its xxh3 is {xxh3}, expected {piece.xxh3}"
    return None


def _strays(folder: CacheFolder) -> Iterator[str]:
    """Deletes files in the pieces' folders that are not in the index, and yields their paths."""
    for key in folder.files.sources():
        for placed in folder.files.numbers(key):
            for number in _unknown(folder, key, placed):
                yield folder.files.piece(key, number)


def _unknown(folder: CacheFolder, key: str, numbers: list[int]) -> list[int]:
    """Deletes the files of these numbers that are not in the index, and returns their numbers."""
    with folder.index.transaction() as db:
        rows = db.execute(
            "SELECT number FROM pieces JOIN sources ON sources.id = pieces.source WHERE key = ? "
            "AND number BETWEEN ? AND ?",
            (key, min(numbers, default=0), max(numbers, default=0)),
        ).fetchall()
        unknown = sorted(set(numbers) - {number for (number,) in rows})
        for number in unknown:
            folder.files.unlink(key, number)
    return unknown


def _others(folder: CacheFolder) -> list[str]:
    """Returns the tokens of the other live members."""
    path = folder.files.members
    return [token for token in members(path) if token != folder.token and is_alive(path, token)]
