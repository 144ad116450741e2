"""How many requests run at once while data is written to a cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_WRITERS = 3  # stretches that are written in parallel, which keeps a disk busy
# The fewest parallel requests. With fewer, cores idle while responses begin.
_LEAST_REQUESTS = 6


class Pace:
    """Adapts the number of parallel requests: enough to keep the writers busy, and not many more.

    The limit is raised by one for each result that finds a free writer, and lowered by one for each
    that has to wait for one, since more requests would only occupy memory and cores.

    Args:
        most: The largest number of parallel requests.

    Attributes:
        limit: The current limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(most, _LEAST_REQUESTS)
        self.limit = self._least
        self._under_way = 0
        self._free_writers = _WRITERS
        # `notify` wakes one thread only: a needless wake-up costs as much as a small block.
        lock = threading.Lock()
        self._may_ask = threading.Condition(lock)
        self._may_write = threading.Condition(lock)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Waits until another request is allowed, which then runs inside the block."""
        with self._may_ask:
            self._may_ask.wait_for(lambda: self._under_way < self.limit)
            self._under_way += 1
            if self._under_way < self.limit:
                self._may_ask.notify()
        try:
            yield
        finally:
            with self._may_ask:
                self._under_way -= 1
                self._may_ask.notify()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Waits for a turn to write the data that has arrived."""
        with self._may_write:
            step = 1 if self._free_writers else -1
            self.limit = min(self._most, max(self._least, self.limit + step))
            self._may_ask.notify()
            self._may_write.wait_for(lambda: self._free_writers > 0)
            self._free_writers -= 1
        try:
            yield
        finally:
            with self._may_write:
                self._free_writers += 1
                self._may_write.notify()
