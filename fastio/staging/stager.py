"""Brings blocks to where the engine can read them: files in the cache, or in memory.

Blocks are fetched in the order in which they are asked for, several at once. A block that nobody of
this process asks for any more leaves memory at once, and the cache when its room is needed.
Whatever is wrong with the cache (no space, not writable, deleted, all of it in use), a block comes
through memory then: a reader never waits for room.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastio.cache import Cache, CacheFolder, MemoryFile, Run, Source, memory_file
from fastio.dataset.remote import HEADS
from fastio.errors import CacheError
from fastio.shard import ShardReader
from fastio.staging.blocks import Blocks
from fastio.staging.forecast import Forecast, next_use
from fastio.staging.resident import Resident

Numbers = npt.NDArray[np.int64]
_PARALLEL = 16
_POLL_S = 0.005
_OTHERS_S = 0.5  # between two looks at whether those that fetch a block still live
_TELL_S = 0.5
_HITS_TELL_S = 5.0
_OTHERS_DEADLINE_S = 120.0  # then a block that another process fetches is fetched here too
_WITHOUT_CACHE_S = 5.0  # after it failed
_JOIN_S = 1.0


@dataclass(eq=False)
class _Unit:
    """A block that is wanted."""

    number: int
    turn: int
    refs: int = 0
    state: Literal["queued", "working", "others", "ready", "failed"] = "queued"
    path: str = ""
    memory: MemoryFile | None = None
    error: BaseException | None = None
    damaged: str | None = None  # what is wrong with it at the source
    heads: list[ShardReader] = field(default_factory=list)  # that have all of its bytes
    in_memory: bool = False  # what the cache gave could not be read twice
    began_s: float = 0.0  # when it was last taken from the queue
    waiting_s: float = 0.0  # since when others fetch it
    asked_s: float = 0.0  # when the index was asked last
    looked_s: float = 0.0  # when its file was looked for last


class Stager:
    """Stages blocks of one dataset for one loader. Thread-safe; a forked child begins anew.

    Args:
        blocks: of the dataset.
        cache: None: blocks stay in memory as long as they are wanted.
        parallel: blocks that are fetched at once.
    """

    def __init__(self, blocks: Blocks, cache: Cache | None, parallel: int = _PARALLEL) -> None:
        self.blocks = blocks
        self.cache = cache
        self._parallel = parallel
        self._run = int.from_bytes(os.urandom(4), "little")
        self._bytes_fetched = 0
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        self._begin()

    @property
    def bytes_fetched(self) -> int:
        """Bytes that came over the network, of blocks and of heads of shards."""
        return self._bytes_fetched + int(self.blocks.dataset.head_bytes_fetched)

    def _begin(self) -> None:
        self._pid = os.getpid()
        # A thread that comes back from a request when the interpreter has gone ends the process
        # with an error.
        atexit.register(self._at_exit)
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # a unit's state
        self._wanted = threading.Condition(lock)  # the queue, for those who stage
        # What asked for blocks before a fork or a reopening has nothing to give back here.
        self.generation = object()
        self._elsewhere: dict[int, _Unit] = {}  # that others fetch
        self._looking = False
        self._units: dict[int, _Unit] = {}
        self._queue: list[tuple[int, int]] = []
        self._turns = itertools.count()
        self._threads: list[threading.Thread] = []
        self._busy: set[threading.Thread] = set()
        self._resident = Resident()
        self._carried: list[Numbers] = []
        self._hits: Counter[int] = Counter()
        self._source: tuple[CacheFolder, Source] | None = None
        self._told: dict[int, Run] = {}
        self._position: tuple[Forecast, int, int] | None = None
        self._told_s = self._hits_told_s = 0.0
        self._without_until_s = 0.0
        self._closed = False

    def __del__(self) -> None:
        atexit.unregister(self._at_exit)

    # --- For readers ------------------------------------------------------------------------------

    def want(self, numbers: Numbers) -> None:
        """Asks for blocks; each call is undone by one of `done`."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            for number in numbers.tolist():
                unit = self._units.get(number)
                if unit is None:
                    unit = self._units[number] = _Unit(number, next(self._turns))
                    path = self._resident_path(number)
                    if path is not None:
                        self._note_hit(number)
                        unit.path, unit.state = path, "ready"
                    else:
                        self._enqueue(unit)
                unit.refs += 1
            self._start_threads()

    def done(self, numbers: Numbers) -> None:
        """Says that blocks are not needed any more, by those who asked for them once."""
        if self._pid != os.getpid():
            return  # they are the parent's, and so may be the lock
        with self._changed:
            for number in numbers.tolist():
                unit = self._units.get(number)
                if unit is None:
                    continue
                unit.refs -= 1
                if unit.refs <= 0:
                    del self._units[number]
                    if unit.memory is not None:
                        unit.memory.close()

    def wait(self, numbers: Numbers, timeout_s: float) -> bool:
        """Whether all of these blocks, which were asked for, are there after so long at most.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: one of them cannot be had. `retry` it.
        """
        deadline_s = time.monotonic() + timeout_s
        wanted = numbers.tolist()
        with self._changed:
            while True:
                units = [self._units.get(number) for number in wanted]
                for unit in units:
                    if unit is not None and unit.state == "failed":
                        assert unit.error is not None
                        raise unit.error
                if all(unit is None or unit.state == "ready" for unit in units):
                    return True
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._closed:
                    return False
                self._changed.wait(left_s)

    def has(self, numbers: Numbers) -> bool:
        """Whether all of these blocks, which were asked for, are there."""
        with self._changed:
            units = (self._units.get(number) for number in numbers.tolist())
            return all(unit is None or unit.state == "ready" for unit in units)

    def retry(self, numbers: Numbers) -> None:
        """Fetches again those of these blocks that failed."""
        with self._changed:
            for number in numbers.tolist():
                unit = self._units.get(number)
                if unit is not None and unit.state == "failed":
                    unit.error = None
                    self._enqueue(unit)
            self._start_threads()

    def failed_since_s(self, numbers: Numbers) -> float:
        """When the earliest attempt began, by time.monotonic(), of these blocks' that failed.

        -inf where none is left that failed: it is fetched again already.
        """
        with self._changed:
            units = (self._units.get(number) for number in numbers.tolist())
            failed = (u.began_s for u in units if u is not None and u.state == "failed")
            return min(failed, default=-math.inf)

    def path(self, number: int) -> str:
        """Where a block is that is there."""
        with self._changed:
            return self._units[number].path

    def staged_path(self, number: int) -> str | None:
        """Where a block is, if it is there and wanted."""
        with self._changed:
            unit = self._units.get(number)
            return unit.path if unit is not None and unit.state == "ready" else None

    def restage(self, numbers: Iterable[int], *, in_memory: bool = False) -> None:
        """Throws blocks away whose files are damaged or gone, and fetches them again.

        Args:
            numbers: of blocks that were asked for; those in memory are as they were fetched.
            in_memory: not through the cache, where other processes may evict them at once.
        """
        with self._changed:
            for number in numbers:
                unit = self._units.get(number)
                if unit is None or unit.state != "ready" or unit.memory is not None:
                    continue
                self._resident.discard(unit.path, number)
                unit.in_memory = in_memory
                if self._source is not None:
                    folder, source = self._source
                    with suppress(CacheError):
                        folder.drop(source, [number])
                self._enqueue(unit)
            self._start_threads()

    def tell(self, forecast: Forecast, position: int, ahead: int) -> None:
        """Says where the run stands, for this process's evictions and the others'."""
        with self._changed:
            self._position = forecast, position, ahead
            if time.monotonic() - self._told_s < _TELL_S or self._source is None:
                return
            self._told_s = time.monotonic()
            folder, told, hits = self._source[0], self._runs(), Counter[int]()
            if self._told_s - self._hits_told_s > _HITS_TELL_S:
                self._hits_told_s = self._told_s
                hits, self._hits = self._hits, hits
        with suppress(CacheError):
            for run, at in told.items():
                folder.tell(run, at)
            if hits:
                folder.note_use(self._source[1], hits, hits.total())

    def carry(self, numbers: list[Numbers]) -> None:
        """Takes over blocks that the next epoch asked for already."""
        with self._changed:
            before, self._carried = self._carried, numbers
        for blocks in before:
            self.done(blocks)

    def close(self) -> None:
        """Ends the threads; what was fetched so far stays in the cache. Idempotent."""
        if self._pid != os.getpid():
            return
        atexit.unregister(self._at_exit)
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            self._wanted.notify_all()
            threads, source, hits = self._threads, self._source, self._hits
            self._threads, self._hits = [], Counter()
        deadline_s = time.monotonic() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        with suppress(CacheError):
            if source is not None:
                if hits:
                    source[0].note_use(source[1], hits, hits.total())
                source[0].end_run(self._run)
                source[0].end_run(self._run + 1)
        with self._changed:
            for unit in self._units.values():
                if unit.memory is not None:
                    unit.memory.close()
            self._units.clear()

    def reopen(self) -> None:
        """Makes a closed stager usable again."""
        if self._closed or self._pid != os.getpid():
            self._begin()

    # --- Threads ----------------------------------------------------------------------------------

    def _resident_path(self, number: int) -> str | None:
        """Where a block is that was seen in the cache, unless it was evicted since."""
        if self._source is None:
            return None
        folder, source = self._source
        path = folder.path_of(source, number)
        return path if self._resident.has(path, number) else None

    def _enqueue(self, unit: _Unit) -> None:
        unit.state, unit.path = "queued", ""
        if unit.memory is not None:
            unit.memory.close()
            unit.memory = None
        heapq.heappush(self._queue, (unit.turn, unit.number))
        self._wanted.notify()

    def _start_threads(self) -> None:
        if not self._queue or self._closed:
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        idle = sum(thread not in self._busy for thread in self._threads)
        free = self._parallel - len(self._threads)
        for _ in range(min(free, len(self._queue) + 1 - idle)):
            thread = threading.Thread(
                target=_work, args=(weakref.ref(self),), name="fastio-fetch", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _next(self) -> _Unit | None:
        """A unit to stage, after a short wait; None if there is none."""
        with self._changed:
            look = bool(self._elsewhere) and not self._looking  # one of all threads does
            if not self._queue:
                self._looking = self._looking or look
                self._wanted.wait(_POLL_S if look else 0.2)
                self._looking = self._looking and not look
            while self._queue:
                _, number = heapq.heappop(self._queue)
                unit = self._units.get(number)
                if unit is not None and unit.state == "queued":
                    unit.state, unit.began_s = "working", time.monotonic()
                    self._busy.add(threading.current_thread())
                    return unit
            return self._next_elsewhere() if look else None

    def _next_elsewhere(self) -> _Unit | None:
        """A unit that others fetch and that was not looked for just now."""
        now_s = time.monotonic()
        for number, unit in list(self._elsewhere.items()):
            if self._units.get(number) is not unit or unit.state != "others":
                del self._elsewhere[number]
            elif now_s - unit.looked_s >= _POLL_S:
                unit.looked_s = now_s
                unit.state = "working"
                self._busy.add(threading.current_thread())
                del self._elsewhere[number]
                return unit
        return None

    def _is_idle(self) -> None:
        """Says that a thread is done with what it took."""
        with self._changed:
            self._busy.discard(threading.current_thread())

    def _stage(self, unit: _Unit) -> None:
        """Stages one block, or notes why it cannot be."""
        memory, path, error, others = None, "", None, False
        try:
            size = self.blocks.size(unit.number)  # fetches the heads
            unit.heads = self.blocks.whole_shards(unit.number)
            found = self._through_cache(unit, size) if size else os.devnull
            if isinstance(found, str):
                path = found
            elif found is None:
                others = True
            else:
                memory = found
                path = memory.path
        except BaseException as caught:
            error = caught
        with self._changed:
            if self._units.get(unit.number) is not unit:
                if memory is not None:
                    memory.close()
                return
            unit.error, unit.memory, unit.path = error, memory, path
            unit.state = "failed" if error else "others" if others else "ready"
            if others:
                self._elsewhere[unit.number] = unit
            else:
                self._changed.notify_all()

    def _fetch(self, unit: _Unit) -> list[Any]:
        parts, unit.damaged = self.blocks.fetch(unit.number)
        with self._changed:
            self._bytes_fetched += sum(memoryview(part).nbytes for part in parts)
        return parts

    # --- The cache --------------------------------------------------------------------------------

    def _through_cache(self, unit: _Unit, size: int) -> str | MemoryFile | None:
        """A path in the cache, a file in memory, or None while others fetch the block."""
        try:
            opened = None if unit.in_memory else self._opened()
            if opened is None:
                return memory_file(self._fetch(unit))
            folder, source = opened
            if folder.has(source, unit.number, size):
                return self._found(folder.path_of(source, unit.number), unit.number)
            now_s = time.monotonic()
            if unit.waiting_s and now_s - unit.asked_s < _OTHERS_S:
                return None
            unit.asked_s = now_s
            outcome = self._claim(folder, source, unit, size)
        except CacheError as error:
            self._give_up(error)
            return memory_file(self._fetch(unit))
        if outcome == "others":
            unit.waiting_s = unit.waiting_s or now_s
            if now_s - unit.waiting_s < _OTHERS_DEADLINE_S:
                return None
        if outcome == "ready":
            return self._found(folder.path_of(source, unit.number), unit.number)
        if outcome == "mine":
            return self._fetch_to_cache(folder, source, unit)
        return memory_file(self._fetch(unit))

    def _claim(self, folder: CacheFolder, source: Source, unit: _Unit, size: int) -> str:
        with self._changed:
            keep = set(self._units)
            told = self._runs()
        for _ in range(3):
            outcome = folder.claim(source, {unit.number: size}, keep, told)[unit.number]
            if outcome != "ready" or folder.has(source, unit.number, size):
                return outcome
            folder.drop(source, [unit.number])  # said to be there, and is not
        return "no room"

    def _fetch_to_cache(self, folder: CacheFolder, source: Source, unit: _Unit) -> str | MemoryFile:
        parts: list[Any] = []
        try:
            parts = self._fetch(unit)
            if unit.damaged is None and folder.store(source, unit.number, parts):
                path = folder.path_of(source, unit.number)
                with self._changed:
                    self._resident.add(path, unit.number)
                return path
            folder.abandon(source, [unit.number])
        except (OSError, CacheError) as error:
            with suppress(CacheError):
                folder.abandon(source, [unit.number])
            if not parts:
                raise
            self._give_up(error)
        except BaseException:
            with suppress(CacheError):
                folder.abandon(source, [unit.number])
            raise
        return memory_file(parts)

    def _found(self, path: str, number: int) -> str:
        with self._changed:
            self._resident.add(path, number)
            self._note_hit(number)
        return path

    def _note_hit(self, number: int) -> None:
        self._hits[number] += 1

    def _opened(self) -> tuple[CacheFolder, Source] | None:
        """The cache's folder and the dataset's part of it; None for now or for ever."""
        if self.cache is None or time.monotonic() < self._without_until_s:
            return None
        folder = self.cache.folder(next_use)
        with self._changed:
            if self._source is not None and self._source[0] is folder:
                return self._source
        dataset = self.blocks.dataset
        source = folder.source(
            dataset.store.url,
            dataset.fingerprint,
            len(dataset),
            self.blocks.block_rows,
            dataset.nbytes,
        )
        heads = dataset.head_source()
        with self._changed:
            self._resident.clear()
            self._source = folder, source
            if heads is not None:
                at = Forecast(None, 0, HEADS).to_json()
                self._told = {self._run + 1: Run(heads[1].number, at, 0, 0)}
        return self._source

    def _runs(self) -> dict[int, Run]:
        if self._position is None or self._source is None:
            return dict(self._told)
        forecast, position, ahead = self._position
        run = Run(self._source[1].number, forecast.to_json(), position, ahead)
        return {**self._told, self._run: run}

    def _give_up(self, error: Exception) -> None:
        assert self.cache is not None
        self._without_until_s = time.monotonic() + _WITHOUT_CACHE_S
        self.cache.give_up(error)


def _close_at_exit(reference: weakref.ref[Stager]) -> None:
    stager = reference()
    if stager is not None:
        stager.close()


def _work(reference: weakref.ref[Stager]) -> None:
    """What each thread does, until the stager is closed or nobody has it any more."""
    while True:
        stager = reference()
        if stager is None or stager._closed:
            return
        unit = stager._next()
        if unit is not None:
            stager._stage(unit)
            stager._is_idle()
        del stager, unit
