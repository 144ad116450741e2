"""Remembers which pieces are in the cache, to avoid a system call for each."""

from __future__ import annotations

import os
import time

_LOOK_S = 0.05  # between two checks of a folder
_TICK_NS = 100_000_000  # two changes within this time may have the same time of modification


class Resident:
    """The pieces that were seen in the cache and were not deleted since by any process.

    A system call for each file would make this thread give up the GIL each time. Instead, the
    folders, each of a thousand pieces, are checked at most every 50 ms. A piece may thus be gone
    for that long before it is noticed, which readers must handle anyway. Not thread-safe.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._looked_s: dict[str, float] = {}
        self._changed_ns: dict[str, int] = {}

    def add(self, path: str, number: int) -> None:
        """Adds a piece whose file exists and is named by its number."""
        self._numbers.setdefault(os.path.dirname(path), set()).add(number)

    def discard(self, path: str, number: int) -> None:
        """Removes a piece."""
        self._numbers.get(os.path.dirname(path), set()).discard(number)

    def has(self, path: str, number: int) -> bool:
        """Returns whether a piece is in the cache, as of the last check."""
        folder = os.path.dirname(path)
        numbers = self._numbers.get(folder)
        if not numbers or number not in numbers:
            return False
        if time.monotonic() - self._looked_s.get(folder, -1.0) >= _LOOK_S:
            self._look(folder, numbers)
        return number in numbers

    def clear(self) -> None:
        """Removes all pieces."""
        self._numbers.clear()

    def _look(self, folder: str, numbers: set[int]) -> None:
        try:
            changed_ns = os.stat(folder).st_mtime_ns
            if changed_ns != self._changed_ns.get(folder):
                now_ns = time.time_ns()
                there = {int(name) for name in os.listdir(folder) if name.isdecimal()}
                numbers &= there
                settled = now_ns - changed_ns > _TICK_NS
                self._changed_ns[folder] = changed_ns if settled else -1
        except OSError:
            numbers.clear()
        self._looked_s[folder] = time.monotonic()
