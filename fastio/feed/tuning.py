"""Finds the number of threads of a loader while it runs.

The measure is the consumer's samples per second, including its own work: threads that compete with
training for the same cores can decode more and still slow down the whole. Two numbers of threads
are measured alternately, several times, so that a drift of the rate is not taken for a difference.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from statistics import median

from fastio.feed.base import Feed
from fastio.runtime.cores import available_cores
from fastio.stats import Stats

_GAIN = math.log(1.02)  # a difference that is worth a change
_LOSS = math.log(0.95)  # one that ends a comparison at once
_PAIRS = 4
_WAITS = 0.02  # share of its time; a consumer that waits less needs no more threads
_LEAST_S = 0.5  # of a measurement
_PAUSE_S = 20.0  # between two searches; doubled where one changed nothing
_LONGEST_PAUSE_S = 320.0
_PAUSE_WINDOWS = 20  # at least so many times as long as a measurement


@dataclass(frozen=True)
class Measurement:
    """A measurement of a number of threads.

    Attributes:
        rate: samples per second.
        wait_share: share of the time for which the consumer waited.
        elapsed_s: duration in seconds.
    """

    rate: float
    wait_share: float
    elapsed_s: float


def most_threads() -> int:
    """Returns the highest number of threads to try, more than cores: some wait for a disk."""
    return max(4, 2 * available_cores())


class ThreadTuner:
    """Finds the number of threads with which the consumer gets the most samples per second.

    Args:
        threads: number of threads to start with, at least 1.
        most: highest number of threads to try.
        ahead: number of batches that are prepared ahead. So many batches, and a few more, are not
            measured after a change, because they were made with the number of threads before it.

    Attributes:
        threads: number of threads to use now.
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
        """Records the counters after a batch, and returns the number of threads to use now.

        Args:
            batches, samples: numbers of batches and samples delivered so far.
            elapsed_s: time since the first of them, including the consumer's work.
            wait_s: the part of it for which the consumer waited.
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
        window = Measurement(
            (samples - first_sample) / took_s, (wait_s - waited_s) / took_s, took_s
        )
        threads = self._search.send(window)
        self._begin = None if threads != self.threads else (batches, samples, elapsed_s, wait_s)
        self._left_out = self._settle
        self.threads = threads
        return threads

    # Each generator yields a number of threads, and receives its measurement.

    def _search_for_ever(self, threads: int) -> Generator[int, Measurement, None]:
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

    def _climb(self, threads: int) -> Generator[int, Measurement, int]:
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

    def _is_better(self, other: int, threads: int) -> Generator[int, Measurement, bool]:
        """Returns whether another number is better, measured in turns: a, b, b, a, a, b, b, a."""
        gains: list[float] = []
        for pair in range(_PAIRS):
            # In mirrored order, so that a steady drift of the rate cancels out.
            if pair % 2:
                there, here = (yield other), (yield threads)
            else:
                here, there = (yield threads), (yield other)
            gains.append(_log_ratio(there.rate, here.rate))
            if gains[-1] < _LOSS or (pair > 0 and max(gains) < _GAIN):
                return False
        return median(gains) > _GAIN and sum(gain > 0 for gain in gains) >= _PAIRS - 1

    def _more(self, threads: int) -> int | None:
        """Returns the next higher number to try, a quarter more; None if there is none."""
        return None if threads >= self._most else min(self._most, threads + max(1, threads // 4))

    def _fewer(self, threads: int) -> int | None:
        """Returns the next lower number to try; None if there is none."""
        return None if threads <= 1 else threads - max(1, threads // 5)


def make_tuner(feed: Feed) -> ThreadTuner | None:
    """Returns a tuner of the number of threads of a feed, or None if that number cannot change."""
    threads = feed.set_threads(available_cores())
    return ThreadTuner(threads, most_threads(), feed.ahead) if threads else None


def tune(tuner: ThreadTuner, feed: Feed, stats: Stats) -> None:
    """Changes the number of threads of a feed after a batch, if the tuner found a better one."""
    before = tuner.threads
    threads = tuner.delivered(stats.batches, stats.samples, stats.elapsed_s, stats.wait_s)
    if threads != before:
        feed.set_threads(threads)


def _log_ratio(one: float, other: float) -> float:
    return math.log(one / other) if one > 0 and other > 0 else 0.0
