"""Making room: the pieces that are needed furthest in the future are deleted first.

Only what is ready is ever deleted, within a transaction of the index, its file and its row
together. What is in use stays, however much room is wanted; what the dead have left goes before any
piece does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sqlite3 import Connection

import numpy as np
import numpy.typing as npt

from fastio.cache.claims import Claims
from fastio.cache.files import Files
from fastio.cache.index import READY, count, pieces_known

Numbers = npt.NDArray[np.int64]
_RANK_ALL = 20_000  # pieces; above, victims are ranked once for this many evictions:
_RANKED = 256


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


class Evictor:
    """Chooses and deletes pieces. As thread-safe as the transactions are.

    Args:
        files: of the folder.
        claims: of this member, who takes back what the dead have left.
        next_use: ranks pieces; None: by last use.
    """

    def __init__(self, files: Files, claims: Claims, next_use: NextUse | None) -> None:
        self.next_use = next_use
        self._files = files
        self._claims = claims
        self._victims: list[tuple[int, int]] = []

    def evict(self, db: Connection, wanted: int, kept: Callable[[int, int], bool]) -> int:
        """Deletes what is needed furthest in the future.

        Args:
            wanted: bytes.
            kept: whether a piece must stay, by its source and number.

        Returns:
            The bytes that came free.
        """
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
            self._files.unlink(keys[victim[0]], victim[1])
            db.execute("DELETE FROM pieces WHERE source = ? AND number = ?", victim)
            freed += int(row[0])
            count(db, evicted=1)
        if pieces_known(db) <= _RANK_ALL:
            self._victims = []  # so that what has been used since counts the next time
        return freed

    def _ranked(self, db: Connection) -> list[tuple[int, int]]:
        """Pieces that may go, the best last."""
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
        if not runs or self.next_use is None:
            return np.full(len(numbers), np.inf)
        return self.next_use(runs, numbers)


def _bound(pieces: int) -> int:
    return pieces if pieces <= _RANK_ALL else _RANKED
