"""Eviction: deletes the pieces that are needed furthest in the future (Belady's algorithm).

Only ready pieces are deleted. A piece's file and row go together in one transaction of the index.
Pieces in use are never deleted, however much space is wanted. Claims of dead processes are released
before any piece is evicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sqlite3 import Connection

import numpy as np
import numpy.typing as npt

from fastio.cache.claims import Claims
from fastio.cache.editions import blocks_of, latest
from fastio.cache.files import Files
from fastio.cache.index import READY, count, pieces_known

Numbers = npt.NDArray[np.int64]
# Up to this many pieces, all are ranked anew for each eviction. Above, one ranking serves `_RANKED`
# evictions, because other processes wait for the transaction. A ranking that is out of date costs
# at most a fetch: `kept`, which is asked for each piece, protects those that are needed now.
_RANK_ALL = 20_000
_RANKED = 256


@dataclass(frozen=True)
class Consumer:
    """A process that reads a source, and how far it was when it last recorded that.

    Attributes:
        source: The id of the source.
        forecast: JSON of the parameters from which the order is computed.
        position: The number of samples of the epoch that are done.
        ahead: The number of samples up to which pieces are being fetched.
    """

    source: int
    forecast: str
    position: int
    ahead: int


# Given the consumers of a source and the blocks of some of its pieces, returns how many samples
# are left until each piece is needed. Negative: in use now. Infinite: unknown, or never needed.
NextUse = Callable[[Sequence[Consumer], Numbers], npt.NDArray[np.float64]]


class Evictor:
    """Chooses and deletes pieces. Call it within a transaction of the index.

    Attributes:
        next_use: Ranks pieces. If None, the least recently used piece is evicted first.
    """

    def __init__(self, files: Files, claims: Claims) -> None:
        self.next_use: NextUse | None = None
        self._files = files
        self._claims = claims
        self._victims: list[tuple[int, int]] = []

    def evict(
        self,
        db: Connection,
        wanted: int,
        kept: Callable[[int, int], bool],
        unneeded: bool = False,
    ) -> int:
        """Deletes the pieces that are needed furthest in the future.

        Args:
            db: The connection, within a transaction.
            wanted: The number of bytes to free.
            kept: Called with a piece's source and number; returns whether the piece must stay.
            unneeded: Whether to delete only pieces that no run is known to need.

        Returns:
            The number of bytes that were freed, which may be less or more than `wanted`.
        """
        freed = 0
        if unneeded:
            self._victims = []  # the ranking of an earlier eviction may contain needed pieces
        if not self._victims and wanted > 0:
            self._victims = self._ranked(db, unneeded)
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
            # The file first. If the process is killed before the commit, the row stays and names a
            # missing file, which readers notice and drop. The other way round, a file without a
            # row would take space that no budget counts.
            self._files.unlink(keys[victim[0]], victim[1])
            db.execute("DELETE FROM pieces WHERE source = ? AND number = ?", victim)
            freed += int(row[0])
            count(db, evicted=1)
        if unneeded or pieces_known(db) <= _RANK_ALL:
            self._victims = []  # rank anew next time, with the latest times of use
        return freed

    def _ranked(self, db: Connection, unneeded: bool) -> list[tuple[int, int]]:
        """Returns the pieces that may be evicted. The best candidate is last."""
        self._claims.bury_dead(db)
        distances, victims = [], []
        for (source,) in db.execute("SELECT id FROM sources").fetchall():
            rows = db.execute(
                "SELECT number, used FROM pieces WHERE source = ? AND state = ?", (source, READY)
            ).fetchall()
            if not rows:
                continue
            numbers = np.array([row[0] for row in rows], np.int64)
            used = np.array([row[1] for row in rows], np.float64)
            until = self._until(db, source, blocks_of(numbers))
            # Of the editions of a block, only the one that was used last will be needed again.
            until = np.where(latest(numbers, used) | (until < 0), until, np.inf)
            known = np.isfinite(until)
            # Pieces without a known next use are evicted first, the least recently used first.
            # 1e18 is beyond any distance in samples. `used` may lie in the future, if the clock was
            # set back since: 1e6 s keep the order also then.
            distance = np.where(known, until, 1e18 + 1e9 * (time.time() + 1e6 - used))
            sure = (until >= 0) & ~(known & unneeded)
            distances.append(distance[sure])
            victims += [(source, number) for number in numbers[sure].tolist()]
        if not victims:
            return []
        order = np.argsort(np.concatenate(distances), kind="stable")
        most = len(victims) if len(victims) <= _RANK_ALL else _RANKED
        return [victims[place] for place in order[-most:].tolist()]

    def _until(self, db: Connection, source: int, numbers: Numbers) -> npt.NDArray[np.float64]:
        found = db.execute(
            "SELECT forecast, position, ahead FROM runs WHERE source = ?", (source,)
        ).fetchall()
        runs = [Consumer(source, *row) for row in found]
        if not runs or self.next_use is None:
            return np.full(len(numbers), np.inf)
        return self.next_use(runs, numbers)
