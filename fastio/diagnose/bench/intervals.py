"""Arithmetic on spans of time."""

from __future__ import annotations

from itertools import islice

Interval = tuple[float, float]  # begin and end, in seconds of time.perf_counter()


def total(intervals: list[Interval]) -> float:
    """Returns the seconds of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def within(intervals: list[Interval], begin: float, stop: float) -> list[Interval]:
    """Returns the parts of intervals that lie between two moments."""
    cut = ((max(start, begin), min(end, stop)) for start, end in intervals)
    return [(start, end) for start, end in cut if end > start]


def subtract(intervals: list[Interval], others: list[Interval]) -> list[Interval]:
    """Returns intervals (ascending, disjoint) without the parts that others cover."""
    left = []
    holes = sorted(others)
    at = 0
    for start, end in intervals:
        while at < len(holes) and holes[at][1] <= start:
            at += 1
        for hole_start, hole_end in islice(holes, at, None):
            if hole_start >= end or start >= end:
                break
            if hole_start > start:
                left.append((start, hole_start))
            start = max(start, hole_end)
        if start < end:
            left.append((start, end))
    return left
