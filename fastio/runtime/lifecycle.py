"""What objects with threads and locks do after a fork and at the interpreter's exit.

A forked child has none of its parent's threads, and a lock that one of them held is never released
there. So a child must not wait for its parent's threads, and makes its own locks and threads when
it needs them (`Owner`). A daemon thread that returns from native code after the interpreter has
shut down ends the process with an error, so threads are ended before that (`at_exit`).
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable


class Owner:
    """The process that owns an object's threads and locks: the one that made this object."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def is_here(self) -> bool:
        """Whether this process is the owner. False in a forked child of it."""
        return self._pid == os.getpid()

    def take_over(self, begin: Callable[[], object]) -> None:
        """Makes this process the owner.

        Args:
            begin: Makes new locks and threads. It is called if another process was the owner, once
                even if several threads call this method.
        """
        if self.is_here:
            return
        with self._lock:
            if not self.is_here:
                begin()
                self._pid = os.getpid()


def at_exit(method: Callable[[], object]) -> None:
    """Registers a method that is called when the interpreter exits, if its object still exists.

    Forked children call it too, so a method that ends threads checks its `Owner`.

    Args:
        method: A bound method. Its object is not kept alive.
    """
    call = _weakly(method)
    atexit.register(call)
    cancel = weakref.finalize(method.__self__, atexit.unregister, call)  # type: ignore[attr-defined]
    cancel.atexit = False


def after_fork(method: Callable[[], object]) -> None:
    """Registers a method that is called in each forked child, as long as its object exists.

    Args:
        method: A bound method. Its object is not kept alive.
    """
    os.register_at_fork(after_in_child=_weakly(method))


def hold_while_forking(lock: threading.RLock) -> None:
    """Holds a lock during each fork, so that no other thread has it when the child starts."""
    reference = weakref.ref(lock)
    held: list[threading.RLock] = []

    def before() -> None:
        alive = reference()
        if alive is not None:
            alive.acquire()
            held.append(alive)

    def after() -> None:
        while held:
            held.pop().release()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def _weakly(method: Callable[[], object]) -> Callable[[], None]:
    """Returns a function that calls a bound method if its object still exists."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call
