"""Verifies shards' columns against their hashes, at once or in the background.

Small columns are verified when a shard is opened. Verifying those of large tables first would delay
the first batch, so a background thread verifies them during the first epoch, once in a process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from fastio.errors import FastioError
from fastio.packed.shard import ShardReader
from fastio.runtime.lifecycle import Owner
from fastio.runtime.memory import available_memory, local_ranks

_POLL_S = 0.1  # a waiting thread wakes this often, so that it handles signals


# Hashes of the identities of files whose columns were verified in this process.
_verified: set[int] = set()


def compare(reader: ShardReader) -> None:
    """Verifies the columns of a shard against their hash, once in a process."""
    if hash(reader.identity) not in _verified:
        reader.check_columns()
        reader.check_offsets()
        _verified.add(hash(reader.identity))


class Comparisons:
    """Verifies data in a background thread. Thread-safe; a forked child starts anew.

    Args:
        nbytes: The size of the dataset in bytes. If it exceeds the available memory, data is read
            without the page cache, so that the rows needed next are not displaced.

    Attributes:
        problem: The first error that was found, or None. The next read of rows raises it.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self.problem: FastioError | OSError | None = None
        self._closed = False
        self._owner = Owner()
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def add_shard(self, reader: ShardReader) -> None:
        """Queues the verification of a shard's columns, unless this process has done it before."""
        if hash(reader.identity) not in _verified:
            self.add(lambda: self._compare(reader))

    def add(self, work: Callable[[], None]) -> None:
        """Queues a function that raises an error if something is wrong."""
        self._owner.take_over(self._begin)
        with self._changed:
            self._waiting.append(work)
            if self._busy:
                return
            self._busy = True
        # A daemon thread, so that the process can end before a whole table was read.
        threading.Thread(target=self._work, name="fastio-compare", daemon=True).start()

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

    def _compare(self, reader: ShardReader) -> None:
        reader.check_columns(
            in_file=True,
            past_cache=self._nbytes > available_memory() // local_ranks(),
            stopped=lambda: self._closed,
        )
        reader.check_offsets()
        if not self._closed:
            _verified.add(hash(reader.identity))

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._closed or self.problem is not None:
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                    return
                work = self._waiting.popleft()
            try:
                work()
            except (FastioError, OSError) as error:
                if not self._closed:
                    self.problem = error
            except ValueError:  # the reader was closed meanwhile
                self._closed = True
