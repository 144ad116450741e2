"""How many threads a loader works with, found while it runs.

What counts is the samples a second that the consumer gets through, its own work included: threads
that compete with training for the same cores are too many although they decode more. Two numbers
are compared by turns, several times, so that a drift of the rate is not taken for a difference.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from statistics import median

from fastio.runtime.cores import available_cores
from fastio.runtime.memory import local_ranks

_GAIN = math.log(1.02)  # a difference that is worth a change
_LOSS = math.log(0.95)  # one that ends a comparison at once
_PAIRS = 4
_WAITS = 0.02  # the share of the time that is no waiting worth more threads
_LEAST_S = 0.5  # of a measurement
_PAUSE_S = 20.0  # between two searches; doubled where one changed nothing
_LONGEST_PAUSE_S = 320.0
_PAUSE_WINDOWS = 20  # at least so many times as long as a measurement


@dataclass(frozen=True)
class Window:
    """What a number of threads was measured to bring.

    Attributes:
        rate: samples a second.
        wait_share: of the time, that the consumer waited.
        elapsed_s: how long it took.
    """

    rate: float
    wait_share: float
    elapsed_s: float


def first_threads() -> int:
    """To begin with: the cores that this process may use, shared by the ranks of this machine."""
    return max(1, available_cores() // local_ranks())


def most_threads() -> int:
    """That are tried: threads that wait for a disk are more than there are cores."""
    return max(4, 2 * first_threads())


class ThreadTuner:
    """Finds the number of threads by which the consumer gets the most samples a second.

    Args:
        threads: to begin with, at least 1.
        most: that are tried.
        ahead: batches that are ready before they are asked for. So many, and some more, are left
            out after a change: they are the work of the threads before.
    """

    def __init__(self, threads: int, most: int, ahead: int = 2) -> None:
        self._most = max(threads, most)
        self._settle = ahead + 2
        self._batches = max(12, 3 * self._settle)
        self._search = self._search_for_ever(threads)
        self.threads = next(self._search)
        self._left_out = self._settle
        self._begin: tuple[int, int, float, float] | None = None

    def delivered(self, batches: int, samples: int, elapsed_s: float, wait_s: float) -> int:
        """To be told after each batch; returns how many threads to go on with.

        Args:
            batches, samples: that the consumer got so far.
            elapsed_s: what it took, the consumer's work included.
            wait_s: of that, how long it waited.
        """
        if self._begin is None:
            self._left_out -= 1
            if self._left_out < 0:
                self._begin = (batches, samples, elapsed_s, wait_s)
            return self.threads
        first_batch, first_sample, began_s, waited_s = self._begin
        took_s = elapsed_s - began_s
        if batches - first_batch < self._batches or took_s < _LEAST_S:
            return self.threads
        window = Window((samples - first_sample) / took_s, (wait_s - waited_s) / took_s, took_s)
        threads = self._search.send(window)
        self._begin = None if threads != self.threads else (batches, samples, elapsed_s, wait_s)
        self._left_out = self._settle
        self.threads = threads
        return threads

    # Each generator yields a number of threads, and is sent what was measured with it.

    def _search_for_ever(self, threads: int) -> Generator[int, Window, None]:
        pause_s = _PAUSE_S
        while True:
            before = threads
            threads = yield from self._climb(threads)
            pause_s = _PAUSE_S if threads != before else min(2 * pause_s, _LONGEST_PAUSE_S)
            window = yield threads
            left_s = max(pause_s, _PAUSE_WINDOWS * window.elapsed_s) - window.elapsed_s
            while left_s > 0:
                window = yield threads
                left_s -= window.elapsed_s

    def _climb(self, threads: int) -> Generator[int, Window, int]:
        """Goes up or down while that brings something; returns where it ends."""
        window = yield threads
        began = threads
        if window.wait_share > _WAITS:
            while (more := self._more(threads)) is not None:
                if not (yield from self._is_better(more, threads)):
                    break
                threads = more
        if threads == began:
            while (fewer := self._fewer(threads)) is not None:
                if not (yield from self._is_better(fewer, threads)):
                    break
                threads = fewer
        return threads

    def _is_better(self, other: int, threads: int) -> Generator[int, Window, bool]:
        """Compares two numbers by turns: a, b, b, a, a, b, b, a."""
        gains: list[float] = []
        for pair in range(_PAIRS):
            if pair % 2:
                there, here = (yield other), (yield threads)
            else:
                here, there = (yield threads), (yield other)
            gains.append(_log_ratio(there.rate, here.rate))
            if gains[-1] < _LOSS or (pair > 0 and max(gains) < _GAIN):
                return False
        return median(gains) > _GAIN and sum(gain > 0 for gain in gains) >= _PAIRS - 1

    def _more(self, threads: int) -> int | None:
        """The next higher number that is tried, a quarter more; None: there is none."""
        return None if threads >= self._most else min(self._most, threads + max(1, threads // 4))

    def _fewer(self, threads: int) -> int | None:
        """The next lower number that is tried; None: there is none."""
        return None if threads <= 1 else threads - max(1, threads // 5)


def _log_ratio(one: float, other: float) -> float:
    return math.log(one / other) if one > 0 and other > 0 else 0.0
