"""Row groups that are fetched from a store before they are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from fastio.formats.tables.spans import Span

_AT_ONCE = 8  # each of several requests, where it is large

Fetch = Callable[[], Sequence[Span]]


@dataclass
class _Fetching:
    """One that was begun."""

    nbytes: int
    done: threading.Event = field(default_factory=threading.Event)
    spans: Sequence[Span] = ()
    error: BaseException | None = None


class Ahead:
    """Fetches in the background what will be taken soon. Thread-safe.

    Args:
        nbytes: that may be there, or on their way, without being taken.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._left = nbytes
        self._begun: dict[Hashable, _Fetching] = {}
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type[Ahead], tuple[int]]:
        return Ahead, (self._nbytes,)  # another process fetches its own

    def begin(self, key: Hashable, nbytes: int, fetch: Fetch) -> bool:
        """Begins to fetch something.

        Args:
            key: what it is taken by.
            nbytes: that it takes.
            fetch: does it.

        Returns:
            Whether it is under way; False: there is no room, or too much is under way.
        """
        self._begin_anew_after_fork()
        with self._lock:
            if key in self._begun:
                return True
            under_way = sum(not each.done.is_set() for each in self._begun.values())
            if nbytes > self._left or under_way >= _AT_ONCE:
                return False
            fetching = _Fetching(nbytes)
            # A daemon: the interpreter's exit does not wait for a server that does not answer.
            thread = threading.Thread(
                target=_run, args=(fetching, fetch), name="fastio-table-ahead", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads: nobody may wait for this one
                return False
            self._left -= nbytes
            self._begun[key] = fetching
        return True

    def take(self, key: Hashable, fetch: Fetch) -> Sequence[Span]:
        """What was begun, waited for, and no longer kept here; or what is fetched now.

        Raises:
            whatever `fetch` raised.
        """
        self._begin_anew_after_fork()
        with self._lock:
            fetching = self._begun.get(key)
        if fetching is None:
            return fetch()
        fetching.done.wait()
        with self._lock:
            if self._begun.pop(key, None) is not None:
                self._left += fetching.nbytes
        if fetching.error is not None:
            raise fetching.error
        return fetching.spans

    def clear(self) -> None:
        """Forgets what nobody took."""
        self._begin_anew_after_fork()
        with self._lock:
            self._begun.clear()
            self._left = self._nbytes

    def _begin_anew_after_fork(self) -> None:
        """A child has none of its parent's threads: nothing that they fetch ever comes."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._begun, self._left, self._pid = {}, self._nbytes, os.getpid()


def _run(fetching: _Fetching, fetch: Fetch) -> None:
    try:
        fetching.spans = fetch()
    except BaseException as error:
        fetching.error = error
    finally:
        fetching.done.set()
