"""Decides whether a table's rows are read from a copy in memory or from the mapped files.

Rows of a table are small, and a shuffled epoch reads them in random order. A copy in huge pages is
read twice as fast as a mapped file. If a table does not fit into memory, each row would be read
from the disk as a whole page. Order "auto" then shuffles by windows of blocks, of which two are in
memory: the current one and the next one; see `engine.fields.cold`.
"""

from __future__ import annotations

from dataclasses import replace

from fastio.order.sampling import Sampling
from fastio.packed import Dataset
from fastio.runtime.memory import available_memory, local_ranks

_WORTH_BYTES = 32 << 20  # smaller tables are in the processor's caches anyway
_SHARE = 2  # a copy may take 1 / 2 of the memory that is available now
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 8192  # of a window


def place_table(
    dataset: Dataset, sampling: Sampling, resident: bool | None
) -> tuple[Sampling, bool]:
    """Returns the sampling for a local table, and whether to copy the table to memory.

    Args:
        dataset: A packed dataset on this machine, without images.
        sampling: The requested sampling.
        resident: Whether a copy was requested. If None, it is decided by the memory that is
            available now, of which each rank on the machine gets an equal part.
    """
    room = available_memory() // (_SHARE * local_ranks())
    nbytes, rows = dataset.manifest.nbytes, len(dataset)
    if resident is None:
        scattered = not sampling.ours or sampling.mode == "shuffle"
        resident = scattered and _WORTH_BYTES <= nbytes <= room
    if resident or nbytes <= room * _SHARE:
        return sampling, resident
    if sampling.mode == "shuffle" and sampling.order == "auto" and sampling.window is None:
        block = max(1, _BLOCK_BYTES * rows // nbytes)
        window = min(_MOST_BLOCKS, max(2, room // (2 * _BLOCK_BYTES)))
        sampling = replace(sampling, block=block, window=window)
    return sampling, resident


def is_beyond_memory(dataset: Dataset) -> bool:
    """Returns whether a local packed dataset is larger than the memory that is available now."""
    return dataset.manifest.nbytes > available_memory() // local_ranks()
