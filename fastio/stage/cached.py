"""The blocks of one loader in the cache: finds them there, or claims and fetches them.

If the cache fails for any reason (disk full, not writable, deleted, all of it in use), blocks are
kept in memory instead: nobody waits for space. Used blocks and the run's position are recorded, so
that all processes know what may be evicted.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastio.cache import Cache, CacheFolder, Consumer, MemoryFile, Outcome, Source, memory_file
from fastio.errors import CacheError
from fastio.packed import HEADS
from fastio.sources import Remote
from fastio.stage.blocks import Blocks, Known
from fastio.stage.earlier import Earlier
from fastio.stage.forecast import Forecast, next_use

_OTHERS_S = 0.5  # between two checks whether the process that fetches a block is alive
OTHERS_DEADLINE_S = 120.0  # after this wait, a block that others fetch is fetched here too
_TELL_S = 0.5
_HITS_TELL_S = 5.0
_WITHOUT_CACHE_S = 5.0  # the cache is not used for so long after it has failed
_MOST_SHARDS = 1 << 16  # orders of larger datasets are not recorded: eviction is by last use

_LOOK_S = 0.05  # between two checks of a folder
TICK_NS = 100_000_000  # two changes within this time may get the same timestamp

# The bytes of a block, and what is wrong with it at the source, as `Blocks.fetch` returns them.
Fetched = tuple[list[Any], str | None]


@dataclass
class Waiting:
    """The wait for a block that another process fetches.

    Attributes:
        since_s: When the wait began, by time.monotonic(); 0 if it has not.
        asked_s: When the index was last queried.
    """

    since_s: float = 0.0
    asked_s: float = 0.0


class CachedBlocks:
    """A stager's blocks in the cache. Thread-safe within one process.

    Args:
        blocks: The blocks of the dataset.
        cache: The cache. If None, all blocks go through memory.
        run: The number of the loader's run in this process.
    """

    def __init__(self, blocks: Blocks, cache: Cache | None, run: int) -> None:
        self._blocks = blocks
        self._cache = cache
        self._run = run
        self._lock = threading.RLock()
        self._resident = SeenPieces()
        self._hits: Counter[int] = Counter()
        self._source: tuple[CacheFolder, Source] | None = None
        self._earlier: Earlier | None = None
        self._told: dict[int, Consumer] = {}
        self._position: tuple[Forecast, int, int] | None = None
        self._told_s = self._hits_told_s = 0.0
        self._without_until_s = 0.0

    def resident(self, number: int) -> str | None:
        """Returns the path of a block known to be in the cache, and counts a hit; else None."""
        with self._lock:
            if self._source is None:
                return None
            piece = self._blocks.piece(number)
            path = self._resident.find(piece)
            if path is not None:
                self._hits[piece] += 1
            return path

    def stage(
        self,
        number: int,
        waiting: Waiting,
        keep: Callable[[], Collection[int]],
        fetch: Callable[[Known], Fetched],
    ) -> str | MemoryFile | None:
        """Finds a block in the cache, or fetches it there, or to memory if the cache fails.

        Args:
            number: The block.
            waiting: The wait for this block. The caller keeps it until the block is there.
            keep: Returns the blocks that must not be evicted for it.
            fetch: Fetches the block from the source, given the parts of it that are known.

        Returns:
            A path in the cache, a file in memory, or None while others fetch the block.

        Raises:
            Exception: Whatever `fetch` raises.
        """
        try:
            opened = self._opened()
        except CacheError as error:
            self._give_up(error)
            opened = None
        if opened is None:
            return memory_file(fetch({})[0])
        folder, source = opened
        piece, size = self._blocks.piece(number), self._blocks.piece_bytes(number)
        try:
            found = folder.look(source, piece, size)
            if found == "whole":
                return self._found(folder.path_of(source, piece), piece)
            if found == "damaged":
                self._blocks.dataset.store.transfers.note_refetch()
            now_s = time.monotonic()
            if waiting.since_s and now_s - waiting.asked_s < _OTHERS_S:
                return None
            waiting.asked_s = now_s
            kept = list(map(self._blocks.piece, keep()))
            with self._lock:
                told = self._runs()
            claim = partial(folder.claim, source, keep=kept, told=told)
            outcome: str = claimed(folder, source, {piece: size}, claim, folder.has)[piece]
        except CacheError as error:
            self._give_up(error)
            return memory_file(fetch({})[0])
        if outcome == "others":
            waiting.since_s = waiting.since_s or now_s
            if now_s - waiting.since_s < OTHERS_DEADLINE_S:
                return None
            # The other process hangs, or its network does: fetch the block here, too.
        if outcome == "ready":
            return self._found(folder.path_of(source, piece), piece)
        if outcome == "mine":
            return self._fetch_to_cache(folder, source, number, fetch)
        return memory_file(fetch({})[0])

    def drop(self, number: int, path: str) -> None:
        """Deletes a block whose file is damaged or gone."""
        piece = self._blocks.piece(number)
        with self._lock:
            self._resident.discard(piece)
            opened = self._source
        if opened is not None:
            folder, source = opened
            with suppress(CacheError):
                folder.drop(source, [piece])

    def tell(self, forecast: Forecast, position: int, ahead: int) -> None:
        """Records the position of the run, for evictions by all processes."""
        with self._lock:
            self._position = forecast, position, ahead
            if time.monotonic() - self._told_s < _TELL_S:
                return
        if self._source is None and not self._opens_shards(forecast):
            return
        with self._lock:
            if self._source is None:
                return
            self._told_s = time.monotonic()
            (folder, source), told, hits = self._source, self._runs(), Counter[int]()
            if self._told_s - self._hits_told_s > _HITS_TELL_S:
                self._hits_told_s = self._told_s
                hits, self._hits = self._hits, hits
        with suppress(CacheError):
            for run, at in told.items():
                folder.tell(run, at)
            if hits:
                folder.note_use(source, hits, hits.total())

    def _opens_shards(self, forecast: Forecast) -> bool:
        """Opens the cache for blocks that are shards, which do not use `stage`. Returns success."""
        orders = forecast.orders
        if self._blocks.block_rows or orders is None or orders.bounds is None:
            return False
        if len(orders.bounds) > _MOST_SHARDS:
            return False
        try:
            return self._opened() is not None
        except CacheError as error:
            self._give_up(error)
            return False

    def end_run(self) -> None:
        """Records that the run has ended. Fetched blocks stay in the cache."""
        with self._lock:
            opened, hits = self._source, self._hits
            self._hits = Counter()
        if opened is None:
            return
        folder, source = opened
        with suppress(CacheError):
            if hits:
                folder.note_use(source, hits, hits.total())
            folder.end_run(self._run)
            # This is the run of the heads: see `_opened`.
            folder.end_run(self._run + 1)

    def _fetch_to_cache(
        self, folder: CacheFolder, source: Source, number: int, fetch: Callable[[Known], Fetched]
    ) -> str | MemoryFile:
        parts, piece = list[Any](), self._blocks.piece(number)
        try:
            parts, damaged = fetch(self._known(number))
            whole = [*parts, *self._blocks.tail(number)]
            if damaged is None and folder.store(source, piece, whole):
                path = folder.path_of(source, piece)
                with self._lock:
                    self._resident.add(path, piece)
                return path
            folder.abandon(source, [piece])
        except (OSError, CacheError) as error:
            with suppress(CacheError):
                folder.abandon(source, [piece])
            # Without parts, fetching failed, which the caller reports. With them, the cache did:
            # the bytes are right, and are used from memory.
            if not parts:
                raise
            self._give_up(error)
        except BaseException:  # a claim that is kept would make all processes wait for this one
            with suppress(CacheError):
                folder.abandon(source, [piece])
            raise
        return memory_file(parts)

    def _known(self, number: int) -> Known:
        """Returns the parts of a block that the cache has of earlier versions; none if it fails."""
        if self._earlier is not None:
            with suppress(CacheError):
                return self._earlier.parts(number)
        return {}

    def _found(self, path: str, piece: int) -> str:
        with self._lock:
            self._resident.add(path, piece)
            self._hits[piece] += 1
        return path

    def _opened(self) -> tuple[CacheFolder, Source] | None:
        """Returns the folder and source of the blocks; None without a cache, or after an error."""
        if self._cache is None or time.monotonic() < self._without_until_s:
            return None
        # Opened without the lock: otherwise `resident` would wait for the lock at each block.
        folder = self._cache.folder(next_use)
        with self._lock:
            if self._source is not None and self._source[0] is folder:
                return self._source
        source = source_of(folder, self._blocks)
        heads = heads_run(self._blocks.dataset)
        with self._lock:
            self._resident.clear()
            self._source = folder, source
            self._earlier = Earlier(folder, source, self._blocks)
            if heads is not None and heads.source != source.number:  # blocks are no shards
                self._told = {self._run + 1: heads}
        return self._source

    def _runs(self) -> dict[int, Consumer]:
        if self._position is None or self._source is None:
            return dict(self._told)
        forecast, position, ahead = self._position
        run = Consumer(self._source[1].number, forecast.text, position, ahead)
        return {**self._told, self._run: run}

    def _give_up(self, error: Exception) -> None:
        assert self._cache is not None
        self._without_until_s = time.monotonic() + _WITHOUT_CACHE_S
        self._cache.give_up(error)


def source_of(folder: CacheFolder, blocks: Blocks) -> Source:
    """Returns the part of a cache folder that has the blocks of a dataset."""
    dataset = blocks.dataset
    rows, size = len(dataset), dataset.nbytes
    return folder.source(dataset.store.url, dataset.lineage, rows, blocks.block_rows, size)


def heads_run(dataset: Remote) -> Consumer | None:
    """Returns the run that records that a dataset's heads are in use; None if it has none."""
    heads = dataset.head_source()
    return heads and Consumer(heads[1].number, Forecast(None, 0, HEADS).text, 0, 0)


def claimed(
    folder: CacheFolder,
    source: Source,
    sizes: Mapping[int, int],
    claim: Callable[[Mapping[int, int]], Mapping[int, Outcome]],
    is_there: Callable[[Source, int, int], bool],
) -> dict[int, Outcome]:
    """Returns the outcome of each piece's claim, as `CacheFolder.claim`.

    Args:
        folder, source: Where the pieces are.
        sizes: The size in bytes of each piece, by number.
        claim: `CacheFolder.claim` with its other arguments.
        is_there: Returns whether the file of a piece exists. A piece that the index lists and that
            has no such file is claimed again.
    """
    found = dict(claim(sizes))
    for last in (False, False, True):
        lost = [
            n for n, how in found.items() if how == "ready" and not is_there(source, n, sizes[n])
        ]
        if not lost:
            break
        folder.drop(source, lost)
        found |= dict.fromkeys(lost, "no room") if last else claim({n: sizes[n] for n in lost})
    return found


@dataclass(eq=False)
class _PieceFolder:
    """A folder of pieces: those that were seen there, and when it was last checked."""

    path: str
    numbers: set[int] = field(default_factory=set)
    looked_s: float = -math.inf
    changed_ns: int = -1


class SeenPieces:
    """The pieces of a source that were seen in the cache and were not deleted since by any process.

    A system call for each file would make this thread give up the GIL each time. Instead, the
    folders, each of a thousand pieces, are checked at most every 50 ms. A piece may thus be gone
    for that long before it is noticed, which readers must handle anyway. Not thread-safe.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, tuple[str, _PieceFolder]] = {}  # paths and folders, by number
        self._folders: dict[str, _PieceFolder] = {}

    def add(self, path: str, number: int) -> None:
        """Adds a piece whose file exists and is named by its number."""
        if number not in self._pieces:
            where = os.path.dirname(path)
            folder = self._folders.setdefault(where, _PieceFolder(where))
            folder.numbers.add(number)
            self._pieces[number] = path, folder

    def discard(self, number: int) -> None:
        """Removes a piece."""
        _, folder = self._pieces.pop(number, ("", None))
        if folder is not None:
            folder.numbers.discard(number)

    def find(self, number: int) -> str | None:
        """Returns the path of a piece that is in the cache, as of the last check; else None."""
        found = self._pieces.get(number)
        if found is None:
            return None
        path, folder = found
        if time.monotonic() - folder.looked_s >= _LOOK_S:
            self._look(folder)
        return path if number in folder.numbers else None

    def clear(self) -> None:
        """Removes all pieces."""
        self._pieces.clear()
        self._folders.clear()

    def _look(self, folder: _PieceFolder) -> None:
        there: set[int] = set()
        with suppress(OSError):
            changed_ns = os.stat(folder.path).st_mtime_ns
            if changed_ns == folder.changed_ns:
                there = folder.numbers
            else:
                now_ns = time.time_ns()
                there = {int(name) for name in os.listdir(folder.path) if name.isdecimal()}
                settled = now_ns - changed_ns > TICK_NS
                folder.changed_ns = changed_ns if settled else -1
        for number in folder.numbers - there:
            self.discard(number)
        folder.looked_s = time.monotonic()
