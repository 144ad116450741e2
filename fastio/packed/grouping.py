"""Groups of equal numbers, and where groups of consecutive items begin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def starts_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Returns where groups of consecutive items begin, given the number of items of each group.

    Returns:
        int64 (groups + 1,), with the number of all items at the end.
    """
    given: NDArray[Any] = np.asarray(counts)
    starts = np.zeros(len(given) + 1, np.int64)
    np.cumsum(given, out=starts[1:])
    return starts


def grouped(numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Groups equal numbers, int64 (n,): returns each with its positions, in ascending order."""
    if not len(numbers):
        return []
    # Stable, so that the positions of a number ascend.
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    return [(int(ordered[begin]), order[begin:end]) for begin, end in pairwise(bounds)]
