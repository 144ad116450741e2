"""Checks the indices of a `torch.utils.data.Subset`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastio.runtime.sizes import counted


def check_indices(indices: NDArray[np.int64], count: int) -> None:
    """Raises an error if an index of a Subset is out of range for its dataset.

    Args:
        indices: int64 (n,), which may be negative.
        count: The number of samples in the dataset.

    Raises:
        IndexError: An index is out of range.
    """
    if not indices.size or -count <= int(indices.min()) <= int(indices.max()) < count:
        return
    position = int(np.flatnonzero((indices < -count) | (indices >= count))[0])
    raise IndexError(
        f"the index {indices[position]} of a Subset, at position {position} of {len(indices):,}, "
        f"is out of range for a dataset of {counted(count, 'samples')}"
    )
