"""Where a table's rows are gathered from: memory of our own, or the files as they are mapped.

Rows of a table are small, and a shuffled epoch touches them anywhere. Copied to huge pages they
come twice as fast as from a mapped file. A table that memory cannot hold would be read from the
disk by whole pages for each row: there, order "auto" shuffles by windows of blocks instead, two of
which are in memory: the one that is read and the next one; see `engine.fields.cold`.
"""

from __future__ import annotations

from dataclasses import replace

from fastio.order.sampling import Sampling
from fastio.packed import Dataset
from fastio.runtime.memory import available_memory, local_ranks

_WORTH_BYTES = 32 << 20  # below, the processor's caches do
_SHARE = 2  # of the memory that is available now: half is taken at most
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 8192  # of a window


def place_table(
    dataset: Dataset, sampling: Sampling, resident: bool | None
) -> tuple[Sampling, bool]:
    """The sampling that suits a local table, and whether it is to be copied to memory.

    Args:
        dataset: packed, on this machine, without images.
        sampling: as it was asked for.
        resident: as it was asked for; None: by the memory that is available now, of which several
            ranks on a machine get equal parts.
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
    """Whether a packed dataset on this machine is larger than the memory that is available now."""
    return dataset.manifest.nbytes > available_memory() // local_ranks()
