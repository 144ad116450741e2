"""The threads of an engine: native ones, and Python ones for what native code cannot decode."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from fastio import _native
from fastio.runtime.lifecycle import Owner
from fastio.runtime.threads import PATIENCE_S, DaemonPool

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """The threads of one process; after a fork, the child starts its own. Thread-safe.

    Args:
        count: number of native threads, and of Python threads.

    Attributes:
        count: number of threads that work, or will work once they are started.
        closed: whether `close` was called, or will be called next.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.closed = False
        self._native: _native.Engine | None = None
        self._python: DaemonPool | None = None
        self._lock = threading.Lock()
        self._owner = Owner()

    @property
    def native(self) -> _native.Engine:
        """The native threads, which `start` has started."""
        assert self._native is not None
        return self._native

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls `work` on a Python thread; after `close` the returned future is cancelled."""
        with self._lock:  # batches are begun by the feeder's thread and the consumer's
            if not self.closed:
                if self._python is None:
                    self._python = DaemonPool(self.count, "fastio-pillow")
                return self._python.submit(work, *args, **kwargs)
        future: Future[T] = Future()
        future.cancel()
        # Wakes up the threads that wait for the future.
        future.set_running_or_notify_cancel()
        return future

    def start(self) -> None:
        """Starts the native threads of this process if there are none."""
        self._owner.take_over(self._begin_anew)
        if self._native is None:
            self._native = _native.Engine(self.count)
            # Ends the native threads also if the engine is garbage-collected without having been
            # closed.
            weakref.finalize(self, self._native.close)

    def _begin_anew(self) -> None:
        self._native = self._python = None
        self._lock = threading.Lock()

    def resize(self, count: int) -> None:
        """Sets the number of threads, at least 1; fewer if the system cannot start as many."""
        self.count = count
        if not self._owner.is_here:
            return
        if self._native is not None:
            self.count = self._native.set_threads(count)
        with self._lock:
            python = self._python  # another thread may close them
            if python is not None:
                python.resize(self.count)

    def counters(self) -> tuple[int, int, int, int, int, int]:
        """Returns the native counters: images, bytes, and nanoseconds.

        The times are those of reading, decoding, resampling and writing rows (with augmentations),
        and of augmentations alone.
        """
        return (0, 0, 0, 0, 0, 0) if self._native is None else self._native.counters()

    def close(self) -> None:
        """Ends the threads and waits for them, but not for threads that hang. Idempotent."""
        self.closed = True
        if self._native is not None:
            self._native.close()
        if not self._owner.is_here:
            return
        with self._lock:
            python, self._python = self._python, None
        if python is not None:
            python.shutdown(cancel_futures=True, timeout_s=PATIENCE_S)
