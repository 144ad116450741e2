"""Skips or replaces bad samples of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.engine.batch import Batch
from fastio.engine.ragged import RaggedBatch


def skip(batch: Batch, good: npt.NDArray[np.int64]) -> None:
    """Keeps only the `good` rows, int64 indices in order, in the batch."""
    batch.fields = {name: _select(values, good) for name, values in batch.fields.items()}
    for name, lease in batch.leases.items():  # from here on the shorter views hold the lease
        if not isinstance(batch.fields[name], RaggedBatch):
            batch.fields[name] = lease.view(len(good))
    batch.valid = int(np.count_nonzero(good < batch.valid))
    _keep(batch, good)


def replace(batch: Batch, bad: list[int], good: npt.NDArray[np.int64]) -> None:
    """Replaces each bad row by the next good row, or by the first one if none follows."""
    sources = np.arange(len(batch.rows))
    sources[bad] = good[np.searchsorted(good, bad) % good.size]
    _keep(batch, sources)
    for name, values in batch.fields.items():
        if isinstance(values, RaggedBatch):
            batch.fields[name] = values.take(sources)
            continue
        for index in bad:
            values[index] = values[sources[index]]


def _keep(batch: Batch, places: npt.NDArray[np.int64]) -> None:
    """Updates the row numbers of the batch to those of its samples."""
    batch.rows = batch.rows[places]
    if batch.occurrences is not None:
        batch.occurrences = batch.occurrences[places]


def _select(values: Any, good: npt.NDArray[np.int64]) -> Any:
    """Returns the good rows of a field. Arrays are compacted in place and stay in their slot."""
    if isinstance(values, RaggedBatch):
        return values.take(good)
    if isinstance(values, list):
        return [values[index] for index in good.tolist()]
    for place, index in enumerate(good.tolist()):
        if place != index:
            values[place] = values[index]
    return values[: len(good)]
