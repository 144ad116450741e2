"""A pool of threads that nobody waits for when the read of one of them hangs."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from fastio import _native
from fastio.runtime.lifecycle import Owner

PATIENCE_S = _native.PATIENCE_S  # for what is in hand when something is closed
# How long the user's thread waits at most before it looks at signals again. A signal that arrives
# just before a wait begins does not end the wait.
WAIT_S = 0.05

T = TypeVar("T")
P = ParamSpec("P")


def join_all(threads: Iterable[threading.Thread], timeout_s: float | None) -> bool:
    """Waits for threads to end, and returns whether all of them have.

    Args:
        threads: The threads. The calling thread is skipped.
        timeout_s: The longest wait for all of them. If None, there is no limit.
    """
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    others = [thread for thread in threads if thread is not threading.current_thread()]
    for thread in others:
        thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in others)


def wait_for(future: Future[T]) -> T:
    """Waits for a future and returns its result or raises its error. Ctrl-C ends the wait."""
    if threading.current_thread() is threading.main_thread():  # the one that signals interrupt
        while not future.done():
            wait([future], WAIT_S)
    try:
        return future.result()
    finally:
        del future  # breaks the reference cycle of future, error, traceback and this frame


class DaemonPool(Executor):
    """What `concurrent.futures.ThreadPoolExecutor` is, with daemon threads. Thread-safe.

    The interpreter does not wait for the threads when it exits. If the pool becomes garbage, the
    threads end after the tasks that were submitted. The end of a `with` block drops the tasks that
    have not begun and waits for the others; if the block ends by an exception, which may be Ctrl-C,
    it waits for at most `PATIENCE_S` seconds. A forked child has threads of its own, and none of
    its parent's tasks.

    Args:
        threads: maximum number of threads; each task starts one until there are so many.
        name: prefix of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._closed = False
        self._owner = Owner()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # Tasks; _LEAVE ends the thread that takes it, and _END all threads.
        self._tasks: queue.SimpleQueue[_Task | _Signal] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._count = 0  # number of threads, without those that were told to leave

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `concurrent.futures.Executor.submit`."""
        self._owner.take_over(self._begin)
        future: Future[T] = Future()
        with self._lock:
            self._put((future, partial(fn, *args, **kwargs)))
        return future

    def submit_all(self, calls: Sequence[Callable[[], T]]) -> Future[list[T]]:
        """Submits at least one call, and returns one future of all results, in order.

        If a call raises, the future has its error at once, and calls that have not begun are
        dropped. This takes less time than a future for each call, and wakes the waiting thread up
        once.
        """
        self._owner.take_over(self._begin)
        together = _Together[T](len(calls))
        with self._lock:
            for place, call in enumerate(calls):
                self._put((_Part(together, place), call))
        return together.future

    def _put(self, task: _Task) -> None:
        """Puts a task in the queue, for a new thread if there may be more. The lock is held."""
        if self._closed:
            raise RuntimeError("the pool was shut down")
        if self._count < self._most:
            name = f"{self._name}-{self._count}"
            thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)  # only when it runs: an interrupt may come before
            self._count += 1
        self._tasks.put(task)

    def resize(self, threads: int) -> None:
        """Sets the maximum number of threads, at least 1, for tasks that are submitted later."""
        self._owner.take_over(self._begin)
        with self._lock:
            self._most = threads
            # Queued after the waiting tasks: the threads still run the tasks that were submitted
            # before.
            for _ in range(self._count - threads):
                self._tasks.put(_LEAVE)
                self._count -= 1

    def shutdown(
        self, wait: bool = True, *, cancel_futures: bool = False, timeout_s: float | None = None
    ) -> None:
        """Ends the threads. Idempotent.

        Args:
            wait: for the tasks that have begun, and for the others unless they are cancelled.
            cancel_futures: drop the tasks that have not begun.
            timeout_s: longest wait; threads that take longer are abandoned. None: no limit.
        """
        self._owner.take_over(self._begin)
        with self._lock:
            self._closed = True
        while cancel_futures and not self._tasks.empty():
            self._drop_one()
        self._tasks.put(_END)
        join_all(self._threads if wait else (), timeout_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(cancel_futures=True, timeout_s=None if kind is None else PATIENCE_S)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter exits, modules may be unloaded. In a forked child, the threads belong
        # to the parent.
        if not is_finalizing() and self._owner.is_here:
            self._tasks.put(_END)

    def _drop_one(self) -> None:
        try:
            task = self._tasks.get_nowait()
        except queue.Empty:  # a thread took it
            return
        if isinstance(task, tuple):
            task[0].cancel()
            task[0].set_running_or_notify_cancel()  # wakes up those who wait for it


class _Signal(Enum):
    """A message to a thread of a pool, in the queue of its tasks."""

    LEAVE = auto()
    END = auto()


_LEAVE, _END = _Signal


class _Together(Generic[T]):
    """Calls that have one future. Thread-safe."""

    def __init__(self, count: int) -> None:
        self.future: Future[list[T]] = Future()
        self._found: list[Any] = [None] * count
        self._left = count
        self._lock = threading.Lock()

    def add(self, place: int, result: T) -> None:
        """Records the result of a call."""
        with self._lock:
            self._found[place] = result
            self._left -= 1
            if self._left or self.future.done():
                return
            self.future.set_result(self._found)

    def fail(self, error: BaseException) -> None:
        """Records the error of a call."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def cancel(self) -> None:
        """Records that a call was dropped before it began."""
        with self._lock:
            if not self.future.done() and self.future.cancel():
                self.future.set_running_or_notify_cancel()  # wakes up those who wait for it


class _Part(Generic[T]):
    """One call of a `_Together`, with those methods of a future that threads of the pool use."""

    __slots__ = ("_place", "_together")

    def __init__(self, together: _Together[T], place: int) -> None:
        self._together = together
        self._place = place

    def set_running_or_notify_cancel(self) -> bool:
        """Returns whether the result is still wanted."""
        return not self._together.future.done()

    def set_result(self, result: T) -> None:
        """Records the result."""
        self._together.add(self._place, result)

    def set_exception(self, error: BaseException) -> None:
        """Records the error."""
        self._together.fail(error)

    def cancel(self) -> None:
        """Records that the call was dropped."""
        self._together.cancel()


_Task = tuple["Future[Any] | _Part[Any]", Callable[[], Any]]


def _work(tasks: queue.SimpleQueue[_Task | _Signal]) -> None:
    # Not a method: a thread with a reference to its pool would keep it from becoming garbage.
    while isinstance(task := tasks.get(), tuple):
        _do(task)
        del task
    if task is _END:
        tasks.put(task)  # for the other threads


def _do(task: _Task) -> None:
    future, call = task
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            del task, future, call  # breaks the cycle: error, traceback, this frame
        else:
            future.set_result(result)


__all__ = ["PATIENCE_S", "WAIT_S", "DaemonPool", "join_all", "wait_for"]
