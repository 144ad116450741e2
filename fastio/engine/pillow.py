"""A pool of threads for images that Pillow decodes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fastio.runtime.lifecycle import Owner, at_exit
from fastio.runtime.threads import PATIENCE_S, join_all

P = ParamSpec("P")
T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[[], Any]]


class PillowThreads:
    """A pool of threads; one that it does not know cannot block the interpreter's exit.

    With concurrent.futures, an interrupt while a thread starts leaves a thread behind that the pool
    does not know, and the interpreter waits for it without a limit.

    Args:
        count: number of threads; all are started with the first task.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._gate = _Gate(count)
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._owner = Owner()
        at_exit(self._close_at_exit)

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls `work` on one of the threads; after `close` the returned future is cancelled."""
        future: Future[T] = Future()
        if self._closed:
            _cancel(future)
            return future
        while len(self._threads) < self._count:
            name = f"fastio-pillow-{len(self._threads)}"
            work_at = (self._tasks, self._gate)
            thread = threading.Thread(target=_work, args=work_at, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)  # not before it runs: an interrupt may come in between
        self._tasks.put((future, partial(work, *args, **kwargs)))
        self._end_if_closed()  # by another thread meanwhile
        return future

    def resize(self, count: int) -> None:
        """Sets the number of threads, at least 1, that work at a time."""
        self._count = count  # more are started with the next task
        self._gate.widen(count)

    def close(self) -> None:
        """Cancels tasks that have not started and waits for the others, unless they hang."""
        self._end()
        join_all(self._threads, PATIENCE_S)
        self._cancel_all()  # what another thread put there meanwhile

    def _close_at_exit(self) -> None:
        if self._owner.is_here and not self._closed:
            self.close()

    def _end_if_closed(self) -> None:
        if self._closed:
            self._end()

    def _end(self) -> None:
        self._closed = True
        self._cancel_all()
        self._tasks.put(None)

    def _cancel_all(self) -> None:
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return
            if task is not None:
                _cancel(task[0])

    def __del__(self) -> None:
        if self._owner.is_here:  # else the threads, and the locks they hold, are the parent's
            self._end()


def _cancel(future: Future[Any]) -> None:
    """Cancels a future and notifies those who wait for it."""
    future.cancel()
    future.set_running_or_notify_cancel()


class _Gate:
    """A context manager that limits the number of threads inside it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._inside = 0
        self._changed = threading.Condition()

    def widen(self, width: int) -> None:
        """Sets the limit; threads that are inside stay inside."""
        with self._changed:
            self._width = width
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            while self._inside >= self._width:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify()


def _work(tasks: queue.SimpleQueue[_Task | None], gate: _Gate) -> None:
    while (task := tasks.get()) is not None:
        with gate:
            _do(task)
        del task
    tasks.put(None)  # for the next thread


def _do(task: _Task) -> None:
    future, call = task
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            del task, future, call  # else the error, whose traceback has this frame, keeps itself
        else:
            future.set_result(result)
