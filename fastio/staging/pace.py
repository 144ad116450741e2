"""How many requests are under way, and how large: by what is the limit, network or cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Of one request where the network is what limits it, and where the cores are: then several that are
# under way should fit in the processor's cache.
_REQUEST_BYTES = 16 << 20
_SMALL_REQUEST_BYTES = 4 << 20


class Pace:
    """How many requests are under way: as many as keep the cores busy, and not many more.

    What has arrived and waits for a core has left the processor's cache when its turn comes, so the
    number falls by one with each that has to wait, and rises by one with each that has not.

    Args:
        most: requests under way.

    Attributes:
        limit: how many may be under way now.
    """

    def __init__(self, most: int) -> None:
        cores = len(os.sched_getaffinity(0))
        self._most = most
        self._least = min(most, cores + 1)
        self.limit = self._least
        self._under_way = 0
        self._free_cores = cores
        self._changed = threading.Condition()

    @property
    def request_bytes(self) -> int:
        """What one request should ask for."""
        waits_for_network = self.limit > min(self._most - 1, 2 * self._least)
        return _REQUEST_BYTES if waits_for_network else _SMALL_REQUEST_BYTES

    def wait(self) -> None:
        """Waits until one more may be under way, which it is then."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self.limit)
            self._under_way += 1

    @contextmanager
    def core(self) -> Iterator[None]:
        """A core for what has arrived."""
        with self._changed:
            step = 1 if self._free_cores else -1
            self.limit = min(self._most, max(self._least, self.limit + step))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._free_cores > 0)
            self._free_cores -= 1
        try:
            yield
        finally:
            with self._changed:
                self._free_cores += 1
                self._changed.notify_all()

    def done(self) -> None:
        """One is not under way any more."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()
