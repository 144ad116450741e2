"""Retries of requests: which errors are retried, after which delay, until when; their number."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fastio.errors import SourceChanged, SourceNotFound, StoreError
from fastio.runtime.lifecycle import new_lock
from fastio.store.urls import redact

T = TypeVar("T")

_RANDOM = random.SystemRandom()  # not the `random` module, whose state and seed are the user's
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# fsspec, and obstore's uploads, report no progress: a transfer that is slower counts as stalled.
SLOWEST_BYTES_PER_S = 1 << 20
SHORTEST_S = 0.01  # the least time for a request, right before the deadline
FETCHES = 6  # most fetches of damaged data; if each one is damaged, so is the source
_LONGEST_WAIT_S = 360.0  # for servers that ask to wait; the Hub counts requests for 300 s
_LONGEST_REFUSED_PAUSE_S = 1.0  # between requests to a server that has not answered yet
_LONGEST_CAUSE = 400  # characters; some servers answer with whole pages
_BELIEVED = 3  # a doubtful response is accepted as final when it comes this many times


class Transfers:
    """Counters of one store. Thread-safe.

    Attributes:
        retries: The number of requests that failed and were retried.
        refetched: The number of pieces that arrived damaged, or were found damaged in a cache, and
            were fetched again.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self.retries = 0
        self.refetched = 0

    def note_retry(self) -> None:
        """Counts a retry."""
        with self._lock:
            self.retries += 1

    def fetches(self) -> Iterator[bool]:
        """Yields whether it is the last one, for each attempt to fetch data that arrives damaged.

        All attempts after the first are counted.
        """
        for number in range(1, FETCHES + 1):
            if number > 1:
                self.note_refetch()
            yield number == FETCHES

    def note_refetch(self) -> None:
        """Counts a damaged piece that is fetched again."""
        with self._lock:
            self.refetched += 1


class Permanent(Exception):
    """A response that would be the same next time. The message describes it."""


class Unconditional(Permanent):
    """The store does not support conditional writes. The message is its answer."""


class NoConditionalWrites(StoreError):
    """An object cannot be replaced under a condition, because its store does not support that."""

    @classmethod
    def of(cls, url: str, answer: str) -> NoConditionalWrites:
        """Returns the error for an object, with the answer of the store."""
        return cls(
            f"{url} cannot be written: its store does not support conditional writes (If-Match, "
            f"If-None-Match), without which two processes could overwrite each other: {answer}"
        )


class Doubtful(Permanent):
    """A response that may be permanent, or may be due to a fault on the way.

    It is retried, and treated as permanent when it comes for the third time.
    """


class OtherVersion(Permanent):
    """The object has another version than the requested one."""


class Later(Exception):
    """The server asks to wait for some seconds, which do not count against the deadline."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Failed(Exception):
    """No attempt has succeeded: the error of the last one, their number, and the total time."""

    def __init__(self, cause: Exception, attempts: int, seconds: float) -> None:
        super().__init__(cause, attempts, seconds)
        self.cause = cause
        self.attempts = attempts
        self.seconds = seconds


@dataclass(frozen=True)
class Limits:
    """Time limits of calls and attempts.

    Attributes:
        deadline_s: Seconds for one call, including all attempts and pauses.
        timeout_s: Seconds that an attempt may go without progress.
    """

    deadline_s: float
    timeout_s: float


def is_refused(error: BaseException | None) -> bool:
    """Returns whether a connection was refused, because no program listens at the address."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        # Clients wrap the error of the operating system in their own.
        error = error.__cause__ or error.__context__
    return False


def described(problem: Permanent | Failed, secrets: tuple[str, ...]) -> str:
    """Returns why a request has failed, as the end of a message, without secrets."""
    cause: Exception = problem
    tries = advice = ""
    if isinstance(problem, Failed):
        cause = problem.cause
        tries = "1 attempt" if problem.attempts == 1 else f"{problem.attempts} attempts"
        tries += f" in {problem.seconds:.1f} s, the last one: "
        if is_refused(cause):
            advice = (
                ". No program listens there: check the URL or endpoint, and whether the server runs"
            )
    text = " ".join(redact(str(cause) or type(cause).__name__, secrets).split())
    if len(text) > _LONGEST_CAUSE:
        text = text[:_LONGEST_CAUSE] + " ..."
    return f"{tries}{text}{advice}"


def error_of(
    url: str,
    problem: FileNotFoundError | Permanent | Failed,
    doing: str,
    expect: object,
    secrets: tuple[str, ...],
) -> Exception:
    """Returns the error that tells a user why a request has failed.

    Args:
        url: The URL of the object, without secrets.
        problem: Why it has failed.
        doing: What was to be done, such as "read".
        expect: The version that was expected.
        secrets: Words that must not be in the message.
    """
    if isinstance(problem, OtherVersion):
        if doing == "written":
            return SourceChanged(f"{url} was changed by another process: {problem}")
        return SourceChanged(
            f"{url} was replaced while it was being read: it was {expect} when it was opened, "
            f"and {problem}. Open it again, and do not write to objects that are being read"
        )
    if isinstance(problem, FileNotFoundError):
        return SourceNotFound(f"{url}: there is no such object")
    if isinstance(problem, Unconditional):
        return NoConditionalWrites.of(url, described(problem, secrets))
    return StoreError(f"{url} cannot be {doing}: {described(problem, secrets)}")


def attempt(
    request: Callable[[float], T],
    deadline_s: float,
    stop: threading.Event | None = None,
    note_retry: Callable[[], None] = lambda: None,
    refused_s: Callable[[], float] = lambda: math.inf,
) -> T:
    """Calls a request until it succeeds, with exponential backoff and full jitter.

    The pause before attempt n + 1 is uniform between 0 and 0.1 s x 2^n, at most 5 s: Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        request: Makes one attempt. Called with the seconds that it may take.
        deadline_s: Seconds for all attempts together.
        stop: If this event is set, there is no further attempt.
        note_retry: Called before each further attempt.
        refused_s: Returns for how many seconds connections may be refused, one after another. If
            that is limited, the pauses are at most 1 s.

    Raises:
        FileNotFoundError, Permanent: As raised by the request, without a retry. A Doubtful is
            raised when it comes for the third time.
        Failed: The deadline has passed, connections were refused for too long, or `stop` is set.
    """
    start = time.monotonic()
    left_s = deadline_s
    attempts = doubts = 0
    waited_s = 0.0
    refused_since: float | None = None
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
            cause = error  # of any kind: clients raise errors of their own for broken connections
        if isinstance(cause, Later) and waited_s + cause.seconds <= _LONGEST_WAIT_S:
            waited_s += cause.seconds
            start += cause.seconds  # as if the call had begun later: the deadline moves, too
            if (stop or threading.Event()).wait(cause.seconds):
                break
        now_s, longest_s, final_s = time.monotonic(), _LONGEST_PAUSE_S, math.inf
        if not is_refused(cause):
            refused_since = None
        else:
            refused_since = now_s if refused_since is None else refused_since
            # An address at which nothing listens refuses at once, for the whole deadline, if the
            # port is wrong. A server that answered before may be restarting: `refused_s` tells.
            final_s = refused_since + refused_s()
            longest_s = longest_s if final_s == math.inf else _LONGEST_REFUSED_PAUSE_S
        pause_s = _RANDOM.uniform(0, min(longest_s, _FIRST_PAUSE_S * 2 ** min(attempts, 20)))
        left_s = start + deadline_s - now_s - pause_s
        given_up = left_s <= 0 or now_s + pause_s >= final_s
        if given_up or (stop is not None and stop.is_set()):
            break
        if stop is None:
            time.sleep(pause_s)
        elif stop.wait(pause_s):
            break
        note_retry()
        del cause  # it refers to this frame and those of all callers
    try:
        raise Failed(cause, attempts, time.monotonic() - start) from None
    finally:
        del cause
