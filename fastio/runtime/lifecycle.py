"""What objects with threads and locks do after a fork and at the interpreter's exit.

A forked child has none of its parent's threads, and a lock that one of them held is never released
there. So a child must not wait for its parent's threads, and makes its own locks and threads when
it needs them (`Owner`). An object that has no threads, and that a child goes on using, has a lock
that is free in each child (`new_lock`). A daemon thread that returns from native code after the
interpreter has shut down ends the process with an error, so threads are ended before that
(`at_exit`).
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """Returns a lock that is free in each forked child, whoever holds it at the fork.

    A thread of the parent may hold the lock at the fork, and does not continue in the child. Code
    that holds the lock must therefore leave the object usable after each line.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as in Python's own modules


os.register_at_fork(after_in_child=_free_locks)


_ended: list[object] = []  # methods that were called at the exit


class Owner:
    """The process that owns an object's threads and locks: the one that made this object."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = new_lock()

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
        method: A bound method. Its object is not kept alive before the exit.
    """
    # The method is kept: if another thread dropped its object while `weakref` goes through all
    # finalizers at the exit, it would remove the object's own from them meanwhile.
    call = weakly(method, called=_ended)
    atexit.register(call)
    cancel = weakref.finalize(method.__self__, atexit.unregister, call)  # type: ignore[attr-defined]
    # At the exit, `finalize` must not unregister the call before the call has run.
    cancel.atexit = False


def after_fork(method: Callable[[], object]) -> None:
    """Registers a method that is called in each forked child, as long as its object exists.

    Args:
        method: A bound method. Its object is not kept alive before the exit.
    """
    os.register_at_fork(after_in_child=weakly(method))


def hold_while_forking(lock: threading.RLock, before: Callable[[], object] | None = None) -> None:
    """Holds a lock during each fork, so that no other thread has it when the child starts.

    A thread that has the lock must not wait for another lock of this kind: the thread that forks
    takes them all, in any order.

    Args:
        lock: The lock.
        before: A bound method that is called with the lock before each fork, as long as its object
            exists; None: nothing is called. It must not raise.
    """
    _held_at_forks[lock] = (lambda: None) if before is None else weakly(before)


def _hold_locks() -> None:
    _forking.acquire()  # of several threads that fork, each waits for the one before
    for lock, before in list(_held_at_forks.items()):
        lock.acquire()
        _held.append(lock)
        before()


def _release_locks() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


_held_at_forks: weakref.WeakKeyDictionary[threading.RLock, Callable[[], object]]
_held_at_forks = weakref.WeakKeyDictionary()
_held: list[threading.RLock] = []  # during a fork
_forking = threading.RLock()
os.register_at_fork(
    before=_hold_locks, after_in_parent=_release_locks, after_in_child=_release_locks
)


def weakly(method: Callable[[], object], called: list[object] | None = None) -> Callable[[], None]:
    """Returns a function that calls a bound method if its object still exists.

    Args:
        method: The method.
        called: If given, the method is added to it when it is called.
    """
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            if called is not None:
                called.append(alive)
            alive()

    return call
