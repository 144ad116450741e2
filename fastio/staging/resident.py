"""Which pieces are in the cache, without asking the file system for each one again and again."""

from __future__ import annotations

import os
import time

_LOOK_S = 0.05  # between two looks at a folder
_TICK_NS = 100_000_000  # what changes again so soon may have the same time of change


class Resident:
    """Pieces that were seen in the cache, less those that are deleted since, by anybody.

    Each look at a file lets other threads have the interpreter, so it is their folders, of a
    thousand pieces each, that are looked at, and not more often than every 50 ms: a piece may be
    gone for so long, and a reader has to cope with that anyway. Not thread-safe.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._looked_s: dict[str, float] = {}
        self._changed_ns: dict[str, int] = {}

    def add(self, path: str, number: int) -> None:
        """Notes a piece, whose file is there and named by its number."""
        self._numbers.setdefault(os.path.dirname(path), set()).add(number)

    def discard(self, path: str, number: int) -> None:
        """Forgets a piece."""
        self._numbers.get(os.path.dirname(path), set()).discard(number)

    def has(self, path: str, number: int) -> bool:
        """Whether a piece is there."""
        folder = os.path.dirname(path)
        numbers = self._numbers.get(folder)
        if not numbers or number not in numbers:
            return False
        if time.monotonic() - self._looked_s.get(folder, -1.0) >= _LOOK_S:
            self._look(folder, numbers)
        return number in numbers

    def clear(self) -> None:
        """Forgets all."""
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
