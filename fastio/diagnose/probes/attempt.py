"""Probes that may fail, or not come back: the rest goes on, and a note says what is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Attempts:
    """Calls probes while there is time, and notes which ones failed.

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
        """The seconds that are left."""
        return max(0.0, self._end_s - time.monotonic())

    def __call__(
        self, what: str, probe: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Returns the result of a probe; None, with a note, if it fails or no time is left."""
        if not self.left_s:
            self.notes.append(f"{what}: left out, there was no time for it")
            return None
        try:
            return probe(*args, **kwargs)
        except Exception as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: {cause}")
            return None


def within(seconds: float, what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns the result of a call that may hang, or raises TimeoutError and stops waiting for it.

    Args:
        seconds: to wait.
        what: is waited for, for the error.
        call: goes on in a thread of its own, which does not keep the process from ending.
        args, kwargs: of it.

    Raises:
        TimeoutError: it did not return in time.
        Exception: that it raises.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="fastio-doctor", daemon=True).start()
    if not wait([done], seconds).done:
        raise TimeoutError(f"{what} did not answer within {seconds:.0f} s")
    return done.result()
