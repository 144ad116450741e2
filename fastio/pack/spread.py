"""Evenly spread samples of a range of numbers."""

from __future__ import annotations


def spread(total: int, count: int) -> list[int]:
    """Returns up to `count` numbers below `total`, such that every prefix is evenly spread.

    The order is by reversed bits: halves first, then quarters, eighths, and so on.
    """
    count = min(total, count)
    bits = max(1, (count - 1).bit_length())
    order = sorted(range(count), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [number * total // count for number in order]
