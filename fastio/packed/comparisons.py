"""Verification of the columns of shards against the manifest, once on a machine.

Small columns are verified when a shard is opened. Verifying those of large tables first would delay
the first batch, so a background thread verifies them during the first epoch.

A process that has verified a shard notes that, and the ranks of the machine share their notes
(`runtime.node`). Each of them verifies some shards; a shard that another rank verifies is looked
at again later. If a rank finds damage, or is killed, there is no note: the others verify the shard
too, and find the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import xxhash

from fastio.errors import FastioError
from fastio.packed.shard import ShardReader
from fastio.runtime.cores import local_ranks
from fastio.runtime.lifecycle import Owner
from fastio.runtime.memory import available_memory
from fastio.runtime.node import NodeMemory

# Columns up to this size are verified when their shard is opened, larger ones in the background.
_CHECKED_BYTES = 16 << 20
_POLL_S = 0.1  # a waiting thread wakes this often, so that it handles signals
_LOOK_S = 0.02  # between two looks at shards that other ranks verify
_LOOK_SMALL_S = 0.001  # the same while a shard with small columns is opened
_WAIT_S = 60.0  # a rank that verifies one shard is not waited for longer
_WAIT_SMALL_S = 2.0

# Numbers of the files whose columns were verified in this process.
_verified: set[int] = set()


def compare(reader: ShardReader) -> None:
    """Verifies the columns of a shard against their hash, once in a process."""
    if file_number(reader) not in _verified:
        reader.check_columns()
        reader.check_offsets()
        _verified.add(file_number(reader))


def file_number(reader: ShardReader) -> int:
    """Returns a number that identifies a shard's file on this machine; not 0."""
    return xxhash.xxh3_64_intdigest(repr(reader.identity).encode()) or 1


class Comparisons:
    """Verifies data, in a background thread if it is large. A forked child starts anew.

    Thread-safe.

    Args:
        path: The path or URL of the dataset.
        nbytes: The size of the dataset in bytes. If it exceeds the available memory, data is read
            without the page cache, so that the rows needed next are not displaced.
        fingerprint: The fingerprint of the dataset.
        shards: The number of its shards.

    Attributes:
        problem: The first error that was found, or None. The next read of rows raises it.
    """

    def __init__(self, path: str, nbytes: int, fingerprint: str, shards: int) -> None:
        self._nbytes = nbytes
        # Copies of a dataset in several places are verified each for itself.
        place = xxhash.xxh3_64_hexdigest(path.encode("utf-8", "surrogateescape"))
        self._notes_of = f"checked-{fingerprint}-{place}", shards
        self.problem: Exception | None = None
        self._closed = False
        self._owner = Owner()
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], bool]] = deque()
        self._busy = False
        self._claimed_s: dict[int, float] = {}  # shards: when other ranks were seen to verify them
        self._opening = threading.Lock()
        self._notes: NodeMemory | None = None
        self._shares = local_ranks() > 1

    def add_shard(self, reader: ShardReader, shard: int) -> None:
        """Verifies the columns of a shard, unless a process has done it: now if they are small.

        Raises:
            ShardCorrupt: Small columns are not what was written.
        """
        self._owner.take_over(self._begin)
        number = file_number(reader)
        if number in _verified or self._is_noted(shard, number):
            return
        if reader.column_bytes > _CHECKED_BYTES:
            self._queue(lambda: self._compare(reader, shard, number, _WAIT_S))
            return
        # Ranks that begin together open the same shards at the same time: one of them verifies it.
        while not self._compare(reader, shard, number, _WAIT_SMALL_S):
            time.sleep(_LOOK_SMALL_S)

    def add(self, work: Callable[[], None]) -> None:
        """Queues a function that raises an error if something is wrong."""

        def whole() -> bool:
            work()
            return True

        self._owner.take_over(self._begin)
        self._queue(whole)

    def _queue(self, work: Callable[[], bool]) -> None:
        with self._changed:
            self._waiting.append(work)
            if self._busy:
                return
            self._busy = True
        # A daemon thread, so that the process can end before a whole table was read.
        thread = threading.Thread(target=self._work, name="fastio-compare", daemon=True)
        try:
            thread.start()
        except BaseException:  # the limit of the system is reached: `finish` must not wait for it
            with self._changed:
                self._busy = False
            raise

    def finish(self) -> None:
        """Waits until everything in the queue was verified, and raises the error that was found."""
        if self._owner.is_here:
            with self._changed:
                while self._busy and self.problem is None and not self._closed:
                    self._changed.wait(_POLL_S)
        self.raise_problem()

    def raise_problem(self) -> None:
        """Raises the error that was found, if there is one."""
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        """Skips what was not verified yet."""
        self._closed = True
        if self._notes is not None:
            self._notes.close()

    def _compare(self, reader: ShardReader, shard: int, number: int, wait_s: float) -> bool:
        """Verifies a shard; returns False while another rank verifies it, for `wait_s` at most."""
        if self._is_noted(shard, number):
            return True
        notes = self._open_notes()
        if notes is None:
            self._check(reader, number)
            return True
        # The system releases the claim if the rank that holds it is killed.
        if not notes.native.claim(shard):
            now_s = time.monotonic()
            if now_s - self._claimed_s.setdefault(shard, now_s) < wait_s:
                return False
            self._check(reader, number)  # that rank hangs
            self._note(shard, number)
            return True
        try:
            if not self._is_noted(shard, number):  # meanwhile
                self._check(reader, number)
                self._note(shard, number)
        finally:
            notes.native.release(shard)
        return True

    def _check(self, reader: ShardReader, number: int) -> None:
        if reader.column_bytes <= _CHECKED_BYTES:
            compare(reader)
            return
        # Reads the file instead of the mapping, which would add the whole table to the resident
        # memory of the process.
        reader.check_columns(
            in_file=True,
            past_cache=self._nbytes > available_memory(),
            stopped=lambda: self._closed,
        )
        reader.check_offsets()
        if not self._closed:
            _verified.add(number)

    def _open_notes(self) -> NodeMemory | None:
        """Returns what the ranks share; None if there is one rank, or nothing can be shared."""
        if self._shares and self._notes is None:
            with self._opening:
                if self._shares and self._notes is None:
                    self._shares = False
                    with suppress(OSError):
                        self._notes = NodeMemory(*self._notes_of)
                        self._shares = True
        return self._notes

    def _is_noted(self, shard: int, number: int) -> bool:
        notes = self._open_notes()
        if notes is None or notes.native.published(shard) != number:
            return False
        _verified.add(number)
        return True

    def _note(self, shard: int, number: int) -> None:
        notes = self._open_notes()
        if notes is not None and number in _verified and not self._closed:
            notes.native.publish(shard, number)

    def _work(self) -> None:
        skipped = 0  # in turn
        while True:
            with self._changed:
                if not self._waiting or self._closed or self.problem is not None:
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                    return
                work = self._waiting.popleft()
            try:
                if work():
                    skipped = 0
                    continue
                with self._changed:
                    self._waiting.append(work)
                    skipped += 1
                    wait = skipped >= len(self._waiting)
                if wait:
                    skipped = 0
                    time.sleep(_LOOK_S)
            except (FastioError, OSError) as error:
                if not self._closed:
                    self.problem = error
            except ValueError:  # the reader was closed meanwhile
                self._closed = True
            except Exception as error:  # MemoryError, ...: `finish` would wait for a dead thread
                self.problem = error
