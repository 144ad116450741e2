"""Probes that may fail: the rest goes on, and a note says what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Attempts:
    """Calls probes while there is time, and notes which failed.

    Args:
        seconds: for all of them.

    Attributes:
        notes: what failed or was left out, a sentence each.
    """

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self.notes: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._end_s - time.monotonic())

    def __call__(
        self, what: str, probe: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """What a probe returns; None, and a note, where it fails or there is no time for it."""
        if not self.left_s:
            self.notes.append(f"{what}: left out, there was no time for it")
            return None
        try:
            return probe(*args, **kwargs)
        except Exception as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: {cause}")
            return None
