"""Counts of what went wrong between a store and its reader, and was made again."""

from __future__ import annotations

import threading


class Transfers:
    """Counters of one store. Thread-safe.

    Attributes:
        retries: requests that failed and were made again.
        refetched: pieces that arrived whole but damaged, or were found damaged in a cache, and were
            fetched again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.retries = 0
        self.refetched = 0

    def note_retry(self) -> None:
        """Counts a request that is made again."""
        with self._lock:
            self.retries += 1

    def note_refetch(self) -> None:
        """Counts a damaged piece that is fetched again."""
        with self._lock:
            self.refetched += 1
