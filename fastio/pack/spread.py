"""A few of many, evenly."""

from __future__ import annotations


def spread(total: int, count: int) -> list[int]:
    """Up to `count` of the numbers below `total`, evenly spread, and so is every beginning of them.

    The order is that of reversed bits: ends and middle first, then quarters, eighths, ...
    """
    count = min(total, count)
    bits = max(1, (count - 1).bit_length())
    order = sorted(range(count), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [number * total // count for number in order]
