"""Which byte ranges are fetched together, and how many requests run at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# Fetching this much for nothing costs less than a request of its own.
GAP_BYTES = 64 << 10
# Ranges are not merged beyond this, so that requests can run side by side.
MERGED_BYTES = 8 << 20
PARALLEL = 16


@dataclass(frozen=True)
class Span:
    """One request that answers several ranges.

    Attributes:
        offset: first byte.
        length: bytes.
        members: numbers of the ranges that lie in it.
    """

    offset: int
    length: int
    members: tuple[int, ...]


def coalesce(
    ranges: Sequence[tuple[int, int]], gap: int = GAP_BYTES, most: int = MERGED_BYTES
) -> list[Span]:
    """The requests that cover some ranges (offset, length): neighbours and overlaps are merged.

    Args:
        ranges: in any order; empty ones are in no request.
        gap: bytes between two ranges up to which they are merged.
        most: bytes of a merged request; a single range may be longer.
    """
    order = sorted((n for n, (_, length) in enumerate(ranges) if length), key=lambda n: ranges[n])
    spans: list[Span] = []
    for number in order:
        offset, length = ranges[number]
        if spans:
            last = spans[-1]
            last_end = last.offset + last.length
            end = max(last_end, offset + length)
            inside = end == last_end
            if inside or (offset - last_end <= gap and end - last.offset <= most):
                spans[-1] = Span(last.offset, end - last.offset, (*last.members, number))
                continue
        spans.append(Span(offset, length, (number,)))
    return spans


def parallel(tasks: Sequence[Callable[[threading.Event], T]], threads: int = PARALLEL) -> list[T]:
    """The results of all tasks in order, some of them at once; the caller's thread works too.

    Args:
        tasks: get an event that is set when another one failed, so that they need not go on.
        threads: at most.

    Raises:
        whatever the first task to fail raised; the others end on their own.
    """
    work = _Work(tasks)
    # Daemons: the interpreter's exit does not wait for a server that does not answer.
    helpers = [
        threading.Thread(target=work.run, name=f"fastio-store-{n}", daemon=True)
        for n in range(min(threads, len(tasks)) - 1)
    ]
    try:
        for helper in helpers:
            helper.start()
        work.run()
        for helper in helpers:
            while helper.is_alive() and work.error is None:
                helper.join(0.1 if len(tasks) > 1 else None)
    finally:
        work.stop.set()
    if work.error is not None:
        raise work.error
    return [work.results[n] for n in range(len(tasks))]


class _Work(Generic[T]):
    """Tasks that several threads take from a common heap."""

    def __init__(self, tasks: Sequence[Callable[[threading.Event], T]]) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.results: dict[int, T] = {}
        self._waiting = iter(list(enumerate(tasks)))
        self._lock = threading.Lock()

    def run(self) -> None:
        """Take and do tasks until there is none, or one failed."""
        while not self.stop.is_set():
            with self._lock:
                number, task = next(self._waiting, (-1, None))
            if task is None:
                return
            try:
                self.results[number] = task(self.stop)
            except BaseException as error:
                self.error = self.error or error
                self.stop.set()
                return
