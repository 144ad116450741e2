"""Fetches row groups from a store in the background before they are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from fastio.runtime.lifecycle import Owner
from fastio.sources.table.spans import Span

_AT_ONCE = 8  # row groups; a large one takes several requests

Fetch = Callable[[], Sequence[Span]]


@dataclass
class _Fetching:
    """A fetch that was started."""

    nbytes: int
    done: threading.Event = field(default_factory=threading.Event)
    spans: Sequence[Span] = ()
    error: BaseException | None = None


class Ahead:
    """Fetches in the background what is needed soon. Thread-safe.

    Args:
        nbytes: The memory limit in bytes for fetches that are running or not taken yet.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._left = nbytes
        self._begun: dict[Hashable, _Fetching] = {}
        self._owner = Owner()

    def __reduce__(self) -> tuple[type[Ahead], tuple[int]]:
        return Ahead, (self._nbytes,)  # fetches are not shared between processes

    def begin(self, key: Hashable, nbytes: int, fetch: Fetch) -> bool:
        """Starts to fetch something in the background.

        Args:
            key: The key by which it is taken.
            nbytes: The memory that it takes.
            fetch: Fetches it.

        Returns:
            Whether it was started. False if there is no memory left or too many fetches are
            running.
        """
        self._owner.take_over(self._begin_anew)
        with self._lock:
            if key in self._begun:
                return True
            under_way = sum(not each.done.is_set() for each in self._begun.values())
            if nbytes > self._left or under_way >= _AT_ONCE:
                return False
            fetching = _Fetching(nbytes)
            # A daemon thread, so that the interpreter can exit while a server does not answer.
            thread = threading.Thread(
                target=_run, args=(fetching, fetch), name="fastio-table-ahead", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the thread cannot be started: nobody must wait for it
                return False
            self._left -= nbytes
            self._begun[key] = fetching
        return True

    def take(self, key: Hashable, fetch: Fetch) -> Sequence[Span]:
        """Returns the result of a started fetch, and forgets it; or fetches now.

        Raises:
            Exception: Whatever `fetch` raised.
        """
        self._owner.take_over(self._begin_anew)
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
        """Forgets all fetches that nobody has taken."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            self._begun.clear()
            self._left = self._nbytes

    def _begin_anew(self) -> None:
        """Resets the state in a forked child, which has none of its parent's threads."""
        self._lock = threading.Lock()
        self._begun, self._left = {}, self._nbytes


def _run(fetching: _Fetching, fetch: Fetch) -> None:
    try:
        fetching.spans = fetch()
    except BaseException as error:
        fetching.error = error
    finally:
        fetching.done.set()
