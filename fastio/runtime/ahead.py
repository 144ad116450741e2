"""Runs jobs on threads before their results are needed.

`in_order` is for jobs whose results are taken one after another, `Ahead` for jobs whose results are
taken by key. In both, a bound limits what is under way, an error is raised where its result is
taken, and neither `close` nor the interpreter's exit waits for a job that hangs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from fastio.runtime.lifecycle import Owner
from fastio.runtime.threads import WAIT_S, DaemonPool, wait_for

_NAME = "fastio-ahead"  # prefix of the threads' names
_AT_ONCE = 8  # most jobs of an `Ahead` that run at the same time

Item = TypeVar("Item")
T = TypeVar("T")


def in_order(
    work: Callable[[Item], T],
    items: Iterable[Item],
    threads: int,
    ahead: int | None = None,
) -> Iterator[T]:
    """Yields the result of `work` for each item, in order, while threads work on the next items.

    Args:
        work: Called on a thread with an item.
        items: The items. The consumer's thread iterates over them, as far as they are needed.
        threads: The number of threads.
        ahead: The number of items besides the consumer's that are begun and not taken. If None,
            four for each thread.

    Raises:
        Exception: Whatever `work` raised for an item, in place of its result.
    """
    most = 4 * threads if ahead is None else ahead
    pending: deque[Future[T]] = deque()
    with DaemonPool(threads, _NAME) as pool:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > most:
                yield wait_for(pending.popleft())
        while pending:
            yield wait_for(pending.popleft())


class Ahead(Generic[T]):
    """Runs jobs whose results are needed soon, within a budget. Thread-safe.

    A forked child starts anew, and so does a pickled copy.

    Args:
        nbytes: The memory limit in bytes for jobs that are running or whose results are not taken.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._owner = Owner()
        self._begin_anew()

    def __reduce__(self) -> tuple[type[Ahead[T]], tuple[int]]:
        return Ahead, (self._nbytes,)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._left = self._nbytes
        self._begun: dict[Hashable, tuple[int, Future[T]]] = {}
        self._pool = DaemonPool(_AT_ONCE, _NAME)

    def begin(self, key: Hashable, nbytes: int, work: Callable[[], T]) -> bool:
        """Starts a job in the background.

        Args:
            key: The key by which its result is taken.
            nbytes: The memory that it takes.
            work: The job.

        Returns:
            Whether it was started, now or before. False if the budget is spent, if too many jobs
            are running, or if the system cannot start a thread.
        """
        self._owner.take_over(self._begin_anew)
        with self._lock:
            if key in self._begun:
                return True
            running = sum(not result.done() for _, result in self._begun.values())
            if nbytes > self._left or running >= _AT_ONCE:
                return False
            try:
                self._begun[key] = nbytes, self._pool.submit(work)
            except RuntimeError:  # the thread cannot be started: nobody must wait for it
                return False
            self._left -= nbytes
        return True

    def take(self, key: Hashable, work: Callable[[], T]) -> T:
        """Returns the result of a started job, and forgets it; runs `work` if none was started.

        Raises:
            Exception: Whatever the job raised.
        """
        self._owner.take_over(self._begin_anew)
        with self._lock:
            job = self._begun.get(key)
        if job is None:
            return work()
        nbytes, result = job
        while not result.done():  # after an interrupt, the next call still returns this job
            wait([result], WAIT_S)
        with self._lock:
            if self._begun.get(key) is job:
                del self._begun[key]
                self._left += nbytes
        return result.result()

    def clear(self) -> None:
        """Forgets all jobs whose results were not taken."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            self._begun.clear()
            self._left = self._nbytes
            self._pool = DaemonPool(_AT_ONCE, _NAME)  # threads of the old one may hang
