"""Makes blocks available to the engine, as files in the cache or in memory.

Blocks are fetched in the order of the requests, several at once. A block that nobody in this
process wants any more is released from memory at once, and evicted from the cache when space is
needed. This module tracks who wants and who fetches which block; `cached` works with the cache.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from fastio.cache import Cache, MemoryFile, memory_file
from fastio.runtime.lifecycle import Owner, at_exit
from fastio.runtime.threads import join_all
from fastio.stage.blocks import Blocks, Known, Numbers
from fastio.stage.cached import CachedBlocks, Fetched, Waiting
from fastio.stage.forecast import Forecast
from fastio.store import Transfers

BLOCKS_AT_ONCE = 16
_POLL_S = 0.005
_JOIN_S = 1.0


@dataclass(eq=False)
class _Block:
    """A block that is wanted."""

    number: int
    turn: int
    refs: int = 0
    state: Literal["queued", "working", "others", "ready", "failed"] = "queued"
    path: str = ""
    memory: MemoryFile | None = None
    error: BaseException | None = None
    heads: list[Any] = field(default_factory=list)  # shards or row groups with all of its bytes
    in_memory: bool = False  # bypass the cache, because the cached file turned out unusable
    began_s: float = 0.0  # when it was last taken from the queue
    waiting: Waiting = field(default_factory=Waiting)
    looked_s: float = 0.0  # when its file was last looked for


class Stager:
    """Stages blocks of one dataset for one loader. Thread-safe; a forked child starts anew.

    Args:
        blocks: The blocks of the dataset.
        cache: The cache. If None, blocks stay in memory while they are wanted.
        parallel: The number of blocks that are fetched in parallel.
    """

    def __init__(self, blocks: Blocks, cache: Cache | None, parallel: int = BLOCKS_AT_ONCE) -> None:
        self.blocks = blocks
        self.cache = cache
        self._parallel = parallel
        # A random number, because the runs of all processes are recorded in one index.
        self._run = int.from_bytes(os.urandom(4), "little")
        self._bytes_fetched = 0
        self._owner = Owner()
        at_exit(self.close)
        self._begin()

    @property
    def bytes_fetched(self) -> int:
        """The number of bytes fetched over the network, of blocks and of heads of shards."""
        return self._bytes_fetched + int(self.blocks.dataset.head_bytes_fetched)

    @property
    def transfers(self) -> Transfers:
        """Counters of retries and of data that was fetched again, since the dataset was opened."""
        return self.blocks.transfers

    def _begin(self) -> None:
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # signals a change of a block's state
        self._wanted = threading.Condition(lock)  # signals new work to the staging threads
        # Requests from before a fork or a reopening have another generation: they are not released.
        self.generation = object()
        self._elsewhere: dict[int, _Block] = {}  # blocks that other processes fetch
        self._looking = False
        self._requested: dict[int, _Block] = {}
        self._queue: list[tuple[int, int]] = []
        self._turns = itertools.count()
        self._threads: list[threading.Thread] = []
        self._busy: set[threading.Thread] = set()
        self._carried: list[Numbers] = []
        self._cached = CachedBlocks(self.blocks, self.cache, self._run)
        self._closed = False

    # --- For readers ------------------------------------------------------------------------------

    def want(self, numbers: Numbers) -> None:
        """Requests blocks. Each call has to be undone by a call of `done`."""
        self._owner.take_over(self._begin)
        with self._changed:
            for number in numbers.tolist():
                block = self._requested.get(number)
                if block is None:
                    block = self._requested[number] = _Block(number, next(self._turns))
                    # Most blocks of later epochs are known to be in the cache, and need no thread.
                    path = self._cached.resident(number)
                    if path is not None:
                        block.path, block.state = path, "ready"
                    else:
                        self._enqueue(block)
                block.refs += 1
            self._start_threads()

    def done(self, numbers: Numbers) -> None:
        """Releases blocks that were requested once by `want`."""
        if not self._owner.is_here:
            return  # they belong to the parent, whose thread may hold the lock
        with self._changed:
            for number in numbers.tolist():
                block = self._requested.get(number)
                if block is None:
                    continue
                block.refs -= 1
                if block.refs <= 0:
                    del self._requested[number]
                    if block.memory is not None:
                        block.memory.close()

    def wait(self, numbers: Numbers, timeout_s: float) -> bool:
        """Waits for requested blocks. Returns whether all of them are there within the timeout.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If one cannot be fetched; `retry` tries again.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not self.has(numbers):
                for block in self._failed(numbers):
                    assert block.error is not None
                    raise block.error
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._closed:
                    return False
                self._changed.wait(left_s)
            return True

    def has(self, numbers: Numbers) -> bool:
        """Returns whether all of these requested blocks are there."""
        with self._changed:
            found = (self._requested.get(number) for number in numbers.tolist())
            return all(block is None or block.state == "ready" for block in found)

    def retry(self, numbers: Numbers) -> None:
        """Fetches those of the blocks again that have failed."""
        with self._changed:
            for block in self._failed(numbers):
                block.error = None
                self._enqueue(block)
            self._start_threads()

    def failed_since_s(self, numbers: Numbers) -> float:
        """Returns when the earliest failed attempt at these blocks began, by time.monotonic().

        Returns -inf if none is in the failed state, because it is being fetched again already.
        """
        with self._changed:
            return min((block.began_s for block in self._failed(numbers)), default=-math.inf)

    def path(self, number: int) -> str:
        """Returns the path of a block that is there."""
        with self._changed:
            return self._requested[number].path

    def staged_path(self, number: int) -> str | None:
        """Returns the path of a block if it is wanted and there, else None."""
        with self._changed:
            block = self._requested.get(number)
            return block.path if block is not None and block.state == "ready" else None

    def restage(self, numbers: Iterable[int], *, in_memory: bool = False) -> None:
        """Fetches blocks again whose files are damaged or gone.

        Args:
            numbers: Requested blocks. Those in memory are skipped, because they cannot change, and
                so are those whose bytes lie elsewhere.
            in_memory: Whether to bypass the cache, in which other processes may evict them at once.
        """
        with self._changed:
            for number in numbers:
                block = self._requested.get(number)
                if block is None or block.state != "ready" or block.memory is not None:
                    continue
                if block.path == os.devnull:
                    continue
                self._cached.drop(number, block.path)
                block.in_memory = in_memory
                self._enqueue(block)
            self._start_threads()

    def tell(self, forecast: Forecast, position: int, ahead: int) -> None:
        """Records the position of the run, for evictions by all processes."""
        self._cached.tell(forecast, position, ahead)

    def carry(self, numbers: list[Numbers]) -> None:
        """Takes over the release of blocks that were already requested for the next epoch."""
        with self._changed:
            before, self._carried = self._carried, numbers
        for blocks in before:
            self.done(blocks)

    def close(self) -> None:
        """Ends the threads. Fetched blocks stay in the cache. Idempotent."""
        if self._closed or not self._owner.is_here:
            return
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            self._wanted.notify_all()
            threads, self._threads = self._threads, []
        # The wait has a limit, because a thread may wait for a server that does not answer.
        join_all(threads, _JOIN_S)
        self._cached.end_run()
        with self._changed:
            for block in self._requested.values():
                if block.memory is not None:
                    block.memory.close()
            self._requested.clear()

    def reopen(self) -> None:
        """Makes a closed stager usable again."""
        self._owner.take_over(self._begin)
        if self._closed:
            self._begin()

    # --- Threads ----------------------------------------------------------------------------------

    def _failed(self, numbers: Numbers) -> list[_Block]:
        found = (self._requested.get(number) for number in numbers.tolist())
        return [block for block in found if block is not None and block.state == "failed"]

    def _enqueue(self, block: _Block) -> None:
        block.state, block.path = "queued", ""
        if block.memory is not None:
            block.memory.close()
            block.memory = None
        # In its old place: blocks are requested in the order of the batches, and the batch that
        # needs a failed or damaged block comes before those of all that was requested since.
        heapq.heappush(self._queue, (block.turn, block.number))
        self._wanted.notify()

    def _start_threads(self) -> None:
        if not self._queue or self._closed:
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        # Idle threads count, not all of them: threads that wait for a stalled server stage nothing.
        idle = sum(thread not in self._busy for thread in self._threads)
        free = self._parallel - len(self._threads)
        for _ in range(min(free, len(self._queue) + 1 - idle)):
            thread = threading.Thread(
                target=_work,
                args=(weakref.ref(self), self._wanted, self._queue),
                name="fastio-fetch",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def _next(self, looks: bool) -> tuple[_Block | None, bool]:
        """Returns a block to stage, if there is one; and whether to look elsewhere after a wait.

        Args:
            looks: whether the thread was told to look: one thread at a time does.
        """
        with self._changed:
            self._looking = self._looking and not looks
            while self._queue:
                _, number = heapq.heappop(self._queue)
                block = self._requested.get(number)
                if block is not None and block.state == "queued":
                    block.state, block.began_s = "working", time.monotonic()
                    self._busy.add(threading.current_thread())
                    return block, False
            found = self._next_elsewhere() if looks else None
            look = found is None and bool(self._elsewhere) and not self._looking
            self._looking = self._looking or look
            return found, look

    def _next_elsewhere(self) -> _Block | None:
        """Returns a block that others fetch and that was not checked just now."""
        now_s = time.monotonic()
        for number, block in list(self._elsewhere.items()):
            if self._requested.get(number) is not block or block.state != "others":
                del self._elsewhere[number]
            elif now_s - block.looked_s >= _POLL_S:
                block.looked_s = now_s
                block.state = "working"
                self._busy.add(threading.current_thread())
                del self._elsewhere[number]
                return block
        return None

    def _is_idle(self) -> None:
        """Marks this thread as idle."""
        with self._changed:
            self._busy.discard(threading.current_thread())

    def _stage(self, block: _Block) -> None:
        """Stages one block, or records why that failed."""
        memory, path, error, others = None, "", None, False
        try:
            size = self.blocks.size(block.number)  # fetches the heads
            block.heads = self.blocks.whole_shards(block.number)
            found = self._brought(block) if size else os.devnull
            if isinstance(found, str):
                path = found
            elif found is None:
                others = True
            else:
                memory = found
                path = memory.path
        # The reader of the block raises the error. If the thread ended here, its block would stay
        # "working" for ever.
        except BaseException as caught:
            error = caught
        with self._changed:
            # Released while it was fetched, and maybe requested again: a new request has a block of
            # its own, which another thread stages.
            if self._requested.get(block.number) is not block:
                if memory is not None:
                    memory.close()
                return
            block.error, block.memory, block.path = error, memory, path
            block.state = "failed" if error else "others" if others else "ready"
            if others:
                self._elsewhere[block.number] = block
            else:
                self._changed.notify_all()

    def _brought(self, block: _Block) -> str | MemoryFile | None:
        """Returns a path in the cache or a file in memory; None while others fetch the block."""
        fetch = partial(self._fetch, block.number)
        if block.in_memory:
            return memory_file(fetch({})[0])
        return self._cached.stage(block.number, block.waiting, self._numbers, fetch)

    def _fetch(self, number: int, known: Known) -> Fetched:
        parts, damaged = self.blocks.fetch(number, known)
        nbytes = self.blocks.size(number) - sum(map(len, known.values()))
        with self._changed:
            self._bytes_fetched += nbytes
        return parts, damaged

    def _numbers(self) -> set[int]:
        """Returns the blocks that are wanted."""
        with self._changed:
            return set(self._requested)


def _work(
    reference: weakref.ref[Stager], wanted: threading.Condition, queue: list[tuple[int, int]]
) -> None:
    """Runs in each thread until the stager is closed or garbage-collected."""
    looks = False
    while True:
        # A weak reference: a loader that is dropped without `close` must become garbage. Threads do
        # not hold the stager while they wait, or idle ones would keep it alive for each other.
        stager = reference()
        if stager is None or stager._closed:
            return
        block, looks = stager._next(looks)
        if block is not None:
            stager._stage(block)
            stager._is_idle()
        del stager
        if block is None:
            with wanted:
                if not queue:
                    wanted.wait(_POLL_S if looks else 0.2)
        del block
