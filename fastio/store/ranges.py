"""Merges byte ranges into requests, and runs requests in parallel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastio.runtime.threads import DaemonPool, wait_for

T = TypeVar("T")

# Fetching this many unneeded bytes costs less than a separate request.
GAP_BYTES = 64 << 10
# Merged requests are not longer than this, so that several can run in parallel.
MERGED_BYTES = 8 << 20
PARALLEL = 16


@dataclass(frozen=True)
class Span:
    """One request: its first byte and length, and the indices of the ranges that lie in it."""

    offset: int
    length: int
    members: tuple[int, ...]


def coalesce(
    ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES, most: int = MERGED_BYTES
) -> list[Span]:
    """Returns requests that cover the ranges (offset, length), in any order; empty ones in none.

    Ranges are merged if the gap between them is at most `gap` bytes, and the merged request is not
    longer than `most` bytes. A single range may be longer.
    """
    order = sorted((n for n, (_, length) in enumerate(ranges) if length), key=lambda n: ranges[n])
    spans: list[Span] = []
    for number in order:
        offset, length = ranges[number]
        if spans:
            last = spans[-1]
            last_end = last.offset + last.length
            end = max(last_end, offset + length)
            # A range within the previous span costs nothing, however long the span is.
            inside = end == last_end
            if inside or (offset - last_end <= gap and end - last.offset <= most):
                spans[-1] = Span(last.offset, end - last.offset, (*last.members, number))
                continue
        spans.append(Span(offset, length, (number,)))
    return spans


def parallel(tasks: Sequence[Callable[[threading.Event], T]], threads: int = PARALLEL) -> list[T]:
    """Runs tasks on several threads, and returns their results in order.

    Args:
        tasks: Called with an event that is set when another task has failed, so that they can stop.
        threads: The largest number of threads.

    Raises:
        Exception: The error of the first task that failed. Running tasks are not waited for.
    """
    stop = threading.Event()
    if len(tasks) < 2:
        return [task(stop) for task in tasks]
    # Daemon threads, so that the interpreter can exit while a server does not answer.
    pool = DaemonPool(min(threads, len(tasks)), "fastio-store")
    try:
        return wait_for(pool.submit_all([partial(task, stop) for task in tasks]))
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
