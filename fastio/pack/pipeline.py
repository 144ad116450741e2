"""Samples encoded by threads, handed on in order, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from fastio.threads import PATIENCE_S, DaemonPool

T = TypeVar("T")
R = TypeVar("R")


class ByteBudget:
    """Lets threads hold bytes up to a limit, and the one whose turn it is in any case.

    Turns are numbered in the order in which results are wanted. The turn that everybody waits for
    is never held up, so there is no deadlock, whatever the sizes.

    Args:
        limit_bytes: what may be held at a time, apart from that one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[int, int] = {}
        self._used_bytes = 0
        self._turn = 0
        self._closed = False
        self._changed = threading.Condition()

    def fits(self, nbytes: int) -> bool:
        """Whether so many more could be held now."""
        with self._changed:
            return self._used_bytes + nbytes <= self._limit_bytes

    def hold(self, turn: int, nbytes: int) -> None:
        """Hold bytes for a turn; waits while they exceed the budget."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or turn == self._turn or self.fits(nbytes))
            self._set(turn, self._held.get(turn, 0) + nbytes)

    def correct(self, turn: int, nbytes: int) -> None:
        """Note what a turn holds in fact; does not wait, since it holds it already."""
        with self._changed:
            self._set(turn, nbytes)

    def release(self, turn: int) -> None:
        """Let go of what a turn holds; the next turn is the one waited for now."""
        with self._changed:
            self._set(turn, 0)
            del self._held[turn]
            self._turn = turn + 1

    def close(self) -> None:
        """Wake everybody: what is under way is not wanted any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _set(self, turn: int, nbytes: int) -> None:
        self._used_bytes += nbytes - self._held.get(turn, 0)
        self._held[turn] = nbytes
        self._changed.notify_all()


class OrderedPipeline(Generic[T, R]):
    """A function applied by threads; results come out in the order in which tasks went in.

    Used by one thread.

    Args:
        function: what to apply; its second argument is to be called with the bytes that it is
            about to read, and waits until the budget has room for them.
        size: how many bytes a result takes.
        workers: number of threads; with 0 the caller's own.
        depth: number of tasks under way at most.
        budget_bytes: bytes of tasks and results under way at most, see `ByteBudget`.
    """

    def __init__(
        self,
        function: Callable[[T, Callable[[int], None]], R],
        size: Callable[[R], int],
        workers: int,
        depth: int,
        budget_bytes: int,
    ) -> None:
        self._function = function
        self._size = size
        self._depth = depth
        self._budget = ByteBudget(budget_bytes)
        self._pool = DaemonPool(workers, "fastio-pack") if workers else None
        self._pending: deque[Future[R]] = deque()
        self._taken = 0

    def submit(self, task: T, nbytes: int) -> Iterator[R]:
        """Put a task in that takes `nbytes` already; gives the results that come out meanwhile.

        The task is under way when the iterator is at its end.
        """
        if self._pool is None:
            yield self._function(task, lambda nbytes: None)
            return
        while self._pending and (
            len(self._pending) >= self._depth
            or self._pending[0].done()
            or not self._budget.fits(nbytes)
        ):
            yield self._take()
        turn = self._taken + len(self._pending)
        # Holds at once: either there is room, or nothing is under way and it is this one's turn.
        self._budget.hold(turn, nbytes)
        self._pending.append(self._pool.submit(self._run, task, turn))

    def drain(self) -> Iterator[R]:
        """The results that are left, in order."""
        while self._pending:
            yield self._take()

    def close(self) -> None:
        """Stops: what has not begun is dropped; a thread whose read hangs is abandoned."""
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
