"""Chooses the windows in which the rows of a dataset are shuffled, and where a table is read from.

With order "auto", rows are shuffled over the whole dataset where any row can be read at any time at
little cost, and else within windows of what is read as a unit:

- remote datasets with images: windows of blocks (`by_blocks`). The rows of up to 32 blocks from
  random positions of the dataset are mixed, so that a batch has rows from up to as many positions.
  With blocks of 40 rows, a batch of 256 rows has on average 8 rows of each block, combined with
  other blocks in every epoch. A shuffle buffer of the same size over files that are read in order
  needs as much memory, but mixes neighbouring rows only. If the cache holds the whole dataset, rows
  are shuffled over all of it from the second epoch on.
- remote datasets without images: windows of shards (`by_shards`).
- local tables: a copy in huge pages is read twice as fast as a mapped file, in any order. If a
  table does not fit into memory, each row would be read from the disk as a whole page, so rows are
  shuffled by windows of blocks, of which two are in memory: the current one and the next one; see
  `engine.fields.cold` (`place_table`).
- rows of table files read one by one: windows of row groups that fit in memory (`by_groups`).

Table files that are read by whole row groups have orders of their own: `feed/row_groups/cut.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastio.order.sampling import Sampling
from fastio.packed import Dataset
from fastio.runtime.memory import available_memory, local_ranks
from fastio.sources import Remote

# Blocks of remote datasets
_MOST_BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 256 << 10
_BLOCKS = 256  # number of blocks of a small dataset
_WINDOW_BLOCKS = 32
_WINDOW_SHARDS = 4  # of datasets without images
_ROW_BLOCK_BYTES = 128 << 10  # size of a block if single rows are wanted
_BUDGET_SHARE = 8  # the least number of windows that fit into the cache

# Local tables
_WORTH_BYTES = 32 << 20  # smaller tables are in the processor's caches anyway
_SHARE = 2  # a copy may take 1 / 2 of the memory that is available now
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 8192  # of a window


@dataclass(frozen=True)
class Cut:
    """The number of rows in a block, and of blocks in a window."""

    block_rows: int
    window: int


def cut(rows: int, nbytes: int, room: int | None, *, by_rows: bool = False) -> Cut:
    """Returns the block and window sizes for a dataset.

    Args:
        rows, nbytes: The size of the dataset.
        room: The size of the cache in bytes. If None, blocks stay in memory.
        by_rows: Whether rows are read in random order, so that a block is used once for each of its
            rows and is not kept.
    """
    row_bytes = max(1.0, nbytes / max(1, rows))
    block_bytes = min(_MOST_BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, nbytes // _BLOCKS))
    if by_rows:
        block_bytes = _ROW_BLOCK_BYTES
    block_rows = max(1, round(block_bytes / row_bytes))
    blocks = _WINDOW_BLOCKS
    if room is not None:
        blocks = int(room // _BUDGET_SHARE // (block_rows * row_bytes))
    return Cut(block_rows, max(1, min(_WINDOW_BLOCKS, blocks)))


def by_blocks(dataset: Remote, sampling: Sampling, room: int | None) -> tuple[Sampling, int]:
    """Returns the sampling for a remote dataset that is fetched by blocks, and a block's rows.

    Args:
        dataset: The dataset.
        sampling: The requested sampling.
        room: As for `cut`.
    """
    fits = room is not None and dataset.nbytes <= room
    scattered = not sampling.ours or sampling.order == "shuffle"
    if sampling.picked is not None and sampling.mode == "sequential":
        scattered = scattered or bool((np.diff(sampling.picked) < 0).any())
    chosen = cut(len(dataset), dataset.nbytes, room, by_rows=scattered and not fits)
    if sampling.window is None:
        sampling = replace(sampling, block=chosen.block_rows, window=chosen.window, settle=fits)
    assert sampling.block is not None
    windowed = sampling.mode in ("window", "settle")
    return sampling, sampling.block if windowed else chosen.block_rows


def by_shards(sampling: Sampling, bounds: Sequence[int]) -> Sampling:
    """Returns the sampling for a remote dataset that is fetched by shards.

    Args:
        sampling: The requested sampling.
        bounds: The first row of each shard, and the number of rows.
    """
    if sampling.window is None and sampling.ours:
        sampling = replace(sampling, window=_WINDOW_SHARDS, bounds=tuple(bounds))
    return sampling


def by_groups(sampling: Sampling, bounds: Sequence[int], groups: int) -> Sampling:
    """Returns the sampling for table files whose rows are read one by one.

    Args:
        sampling: The requested sampling.
        bounds: The first row of each row group, and the number of rows.
        groups: The number of row groups that fit in memory.
    """
    if not sampling.ours or sampling.window is not None:
        return sampling
    window = groups if groups < len(bounds) - 1 else None  # None: all fit, in any order
    return replace(sampling, window=window, bounds=tuple(bounds))


def place_table(
    dataset: Dataset, sampling: Sampling, resident: bool | None
) -> tuple[Sampling, bool | None]:
    """Returns the sampling for a local table, and whether to copy the table to memory.

    None in the place of the second: as the engine sees fit, since there is room for a copy.

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
        resident = None if scattered and _WORTH_BYTES <= nbytes <= room else False
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
