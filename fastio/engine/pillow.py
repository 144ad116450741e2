"""Threads for the images that Pillow decodes."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[[], Any]]


class PillowThreads:
    """A pool of threads; those that it was not told to end do not keep the interpreter.

    concurrent.futures' own pool does: an interrupt while it starts a thread leaves one behind that
    it does not know, and for which the interpreter's exit waits for ever.

    Args:
        count: threads, all of which are started with the first task.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # At exit they are waited for: one that came back from native code when the interpreter has
        # gone would end the process with an error.
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Has one of the threads call `work`."""
        while len(self._threads) < self._count:
            name = f"fastio-pillow-{len(self._threads)}"
            thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)  # not before it runs: an interrupt may come in between
        future: Future[T] = Future()
        self._tasks.put((future, partial(work, *args, **kwargs)))
        return future

    def close(self) -> None:
        """Cancels what is not begun and waits for what is. Idempotent."""
        self._end()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _end(self) -> None:
        atexit.unregister(self._at_exit)
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task[0].cancel()
        self._tasks.put(None)

    def __del__(self) -> None:
        self._end()


def _close_at_exit(reference: weakref.ref[PillowThreads]) -> None:
    threads = reference()
    if threads is not None:
        threads.close()


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, call
    tasks.put(None)  # for the next thread
