"""Encodes samples in threads and returns results in order, within a memory budget."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from fastio.runtime.threads import PATIENCE_S, DaemonPool

T = TypeVar("T")
R = TypeVar("R")


class ByteBudget:
    """Limits the bytes that threads hold, without deadlocks.

    Turns are numbered in the order in which results are wanted. The turn that everybody waits for
    may exceed the limit, so that it never waits, whatever the sizes.

    Args:
        limit_bytes: The limit for all other turns together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[int, int] = {}
        self._used_bytes = 0
        self._turn = 0
        self._closed = False
        self._changed = threading.Condition()

    def fits(self, nbytes: int) -> bool:
        """Returns whether so many more bytes are within the limit now."""
        with self._changed:
            return self._used_bytes + nbytes <= self._limit_bytes

    def hold(self, turn: int, nbytes: int) -> None:
        """Acquires bytes for a turn. Waits while they exceed the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or turn == self._turn or self.fits(nbytes))
            self._set(turn, self._held.get(turn, 0) + nbytes)

    def correct(self, turn: int, nbytes: int) -> None:
        """Sets what a turn really holds. Does not wait, because it is held already."""
        with self._changed:
            self._set(turn, nbytes)

    def release(self, turn: int) -> None:
        """Releases all bytes of a turn. The next turn may exceed the limit from now on."""
        with self._changed:
            self._set(turn, 0)
            del self._held[turn]
            self._turn = turn + 1

    def close(self) -> None:
        """Wakes all waiting threads, whose results are no longer wanted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _set(self, turn: int, nbytes: int) -> None:
        self._used_bytes += nbytes - self._held.get(turn, 0)
        self._held[turn] = nbytes
        self._changed.notify_all()


class OrderedPipeline(Generic[T, R]):
    """Applies a function in threads and returns the results in the order of the tasks.

    To be used by one thread.

    Args:
        function: The function. Its second argument is a callable, which it must call with the
            number of bytes that it is about to read, and which waits until they fit the budget.
        size: Returns the size of a result in bytes.
        workers: The number of threads. If 0, the caller's thread is used.
        depth: The largest number of unfinished tasks.
        budget_bytes: The largest size of tasks and results, see `ByteBudget`.
        memory: Returns the bytes that a task holds when it is submitted. Called only with threads.
    """

    def __init__(
        self,
        function: Callable[[T, Callable[[int], None]], R],
        size: Callable[[R], int],
        workers: int,
        depth: int,
        budget_bytes: int,
        memory: Callable[[T], int] = lambda task: 0,
    ) -> None:
        self._function = function
        self._memory = memory
        self._size = size
        self._depth = depth
        self._budget = ByteBudget(budget_bytes)
        self._pool = DaemonPool(workers, "fastio-pack") if workers else None
        self._pending: deque[Future[R]] = deque()
        self._taken = 0

    def submit(self, task: T) -> Iterator[R]:
        """Submits a task, and yields results that are ready meanwhile.

        The task has been submitted when the iterator is exhausted.
        """
        if self._pool is None:
            yield self._function(task, lambda nbytes: None)
            return
        nbytes = self._memory(task)
        while self._pending and (
            len(self._pending) >= self._depth
            or self._pending[0].done()
            or not self._budget.fits(nbytes)
        ):
            yield self._take()
        turn = self._taken + len(self._pending)
        # This does not wait: either the bytes fit, or no task is pending and it is this turn.
        self._budget.hold(turn, nbytes)
        self._pending.append(self._pool.submit(self._run, task, turn))

    def drain(self) -> Iterator[R]:
        """Yields the remaining results in order."""
        while self._pending:
            yield self._take()

    def close(self) -> None:
        """Drops tasks that have not started, and abandons threads that hang in a read."""
        self._budget.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True, timeout_s=PATIENCE_S)

    def _run(self, task: T, turn: int) -> R:
        result = self._function(task, partial(self._budget.hold, turn))
        self._budget.correct(turn, self._size(result))
        return result

    def _take(self) -> R:
        result = self._pending.popleft().result()
        self._budget.release(self._taken)
        self._taken += 1
        return result
