"""How many requests are under way: by what is the limit, the network or what comes behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Blocks that are checked and written at once: enough to keep a disk busy while others are hashed.
_WRITERS = 3


class Pace:
    """How many requests are under way: as many as keep the writers busy, and not many more.

    What has arrived and waits for its turn has left the processor's cache when it comes. So the
    number falls by one with each that has to wait, and rises by one with each that has not.

    Args:
        most: requests under way.

    Attributes:
        limit: how many may be under way now.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(most, 2)
        self.limit = self._least
        self._under_way = 0
        self._free_writers = _WRITERS
        # Each wakes one thread: one that was woken for nothing costs as much as a small block.
        lock = threading.Lock()
        self._may_ask = threading.Condition(lock)
        self._may_write = threading.Condition(lock)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Waits until one more may be under way, which it is in the block."""
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
        """Waits for a turn to write what has arrived."""
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
