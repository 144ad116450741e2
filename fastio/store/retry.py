"""Attempts at a request: what is tried again, when, and until when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_RANDOM = random.SystemRandom()  # the module's own state is the user's: seeds decide what it gives
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_BELIEVED = 3  # times that a doubtful answer comes


class Permanent(Exception):
    """An answer that will be the same next time; its message says what it was."""


class Doubtful(Permanent):
    """An answer that a server gives every time or, where something between spoils one, only once.

    It is believed when it comes for the third time.
    """


class OtherVersion(Permanent):
    """The object is of another version than the one that was asked for."""


class Failed(Exception):
    """No attempt succeeded.

    Attributes:
        cause: the last attempt's error.
        attempts: how many there were.
        seconds: how long they took together, pauses included.
    """

    def __init__(self, cause: Exception, attempts: int, seconds: float) -> None:
        super().__init__(cause, attempts, seconds)
        self.cause = cause
        self.attempts = attempts
        self.seconds = seconds


@dataclass(frozen=True)
class Limits:
    """How long a call and an attempt may take.

    Attributes:
        deadline_s: of one call, all attempts and pauses together.
        timeout_s: how long an attempt may make no progress.
    """

    deadline_s: float
    timeout_s: float


def attempt(
    request: Callable[[float], T],
    deadline_s: float,
    stop: threading.Event | None = None,
    note_retry: Callable[[], None] = lambda: None,
) -> T:
    """What a request returns, tried again with exponential backoff and full jitter.

    The pause before attempt n + 1 is uniform between 0 and 0.1 s x 2^n, at most 5 s: Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        request: one attempt; gets the seconds that it may take, and keeps to them.
        deadline_s: for all attempts.
        stop: when set, there is no further attempt.
        note_retry: called before each further attempt.

    Raises:
        FileNotFoundError, Permanent: from the request, at once; a Doubtful one for the third time.
        Failed: the deadline came.
    """
    start = time.monotonic()
    left_s = deadline_s
    attempts = doubts = 0
    while True:
        attempts += 1
        try:
            return request(left_s)
        except Doubtful as error:
            doubts += 1
            if doubts == _BELIEVED:
                raise
            cause: Exception = error
        except (FileNotFoundError, Permanent):
            raise
        except Exception as error:
            cause = error
        pause_s = _RANDOM.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempts, 20)))
        spent_s = time.monotonic() - start
        left_s = deadline_s - spent_s - pause_s
        if left_s <= 0 or (stop is not None and stop.is_set()):
            break
        if stop is None:
            time.sleep(pause_s)
        elif stop.wait(pause_s):
            break
        note_retry()
    raise Failed(cause, attempts, time.monotonic() - start) from None
