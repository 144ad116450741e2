"""Numbers in groups of equal ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def grouped(numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Groups equal numbers, int64 (n,): returns each with its positions, in ascending order."""
    if not len(numbers):
        return []
    # Stable, so that the positions of a number ascend.
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    return [(int(ordered[begin]), order[begin:end]) for begin, end in pairwise(bounds)]
