"""Counters of requests that were retried and of data that was fetched again."""

from __future__ import annotations

import threading


class Transfers:
    """Counters of one store. Thread-safe.

    Attributes:
        retries: The number of requests that failed and were retried.
        refetched: The number of pieces that were fetched again, because they arrived damaged or
            were found damaged in a cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.retries = 0
        self.refetched = 0

    def note_retry(self) -> None:
        """Counts a retry."""
        with self._lock:
            self.retries += 1

    def note_refetch(self) -> None:
        """Counts a damaged piece that is fetched again."""
        with self._lock:
            self.refetched += 1
