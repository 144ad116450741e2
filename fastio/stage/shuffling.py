"""Chooses how the rows of a dataset are shuffled, and where tables and images are read from.

This is the only place that decides it: each function returns a sampling with a `Shuffling`, which
has the kind, the sizes and the reason. With order "auto", rows are shuffled over the whole dataset
where any row can be read at any time at little cost, and else within windows of what is read as a
whole:

- remote datasets with images: windows of blocks (`by_blocks`). The rows of up to 32 blocks from
  random positions of the dataset are mixed, so that a batch has rows from up to as many positions.
  With blocks of 40 rows, a batch of 256 rows has on average 8 rows of each block, combined with
  other blocks in every epoch. A shuffle buffer of the same size over files that are read in order
  needs as much memory, but mixes neighbouring rows only. If the cache holds the whole dataset, rows
  are shuffled over all of it from the second epoch on.
- remote datasets without images: windows of shards (`by_shards`).
- remote datasets of which several nodes read their parts: the same windows, within a partition of
  the dataset for each node, so that each block is fetched by one node (`order/partitions.py`). The
  partitions are the same in every epoch, so that a node's cache has to hold its partition only.
  Without a cache each rank fetches for itself, and has a partition of its own.
- local tables: a copy in huge pages is read twice as fast as a mapped file, in any order. If a
  table does not fit into the free memory, each row would be read from the disk as a whole page. So
  rows of tables larger than half of the machine's memory are shuffled by windows of blocks, of
  which two are in memory: the current one and the next one; see `engine.fields.cold`
  (`place_table`).
- rows of table files read one by one: windows of row groups that fit in memory (`by_groups`). If
  they have images, the row groups of a window are read before its batches need them, and each rank
  has a partition of the row groups: to read one takes a rank's processor time, too.
- table files read by whole row groups: windows of their bytes (`by_whole_groups`); how the row
  groups are divided is in `feed/row_groups/cut.py`.
- datasets one after the other: windows of the blocks of all, if one has windows (`by_parts`).
- with a torch.Generator, or torch's default one: the permutation that it draws (`by_generator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.errors import SchemaError
from fastio.order.orders import Permutation
from fastio.order.sampling import Sampling
from fastio.order.shuffling import Granularity, Reason, Shuffling, ShufflingKind
from fastio.packed import Dataset
from fastio.packed.rows import Rows
from fastio.runtime.memory import available_memory, nominal_memory, total_memory
from fastio.runtime.sizes import size_in_bytes
from fastio.sources import MediaTable, Remote

# Blocks of remote datasets
_MOST_BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 256 << 10
_BLOCKS = 256  # number of blocks of a small dataset
_WINDOW_BLOCKS = 32
_WINDOW_SHARDS = 4  # of datasets without images
_ROW_BLOCK_BYTES = 128 << 10  # size of a block if single rows are wanted
_BUDGET_SHARE = 8  # the least number of windows that fit into the cache

# Images in local files are read directly if the data is larger than this multiple of the memory. At
# twice the memory, about 1 / 8 of the rows are in the page cache when the next epoch reads them.
_BEYOND_CACHE = 2

# Row groups with images
_WINDOW_BYTES = 128 << 20
_WINDOWS = 4  # that may be in memory: the current one, the next two, and what is being decoded

# Local tables
_WORTH_BYTES = 32 << 20  # smaller tables are in the processor's caches anyway
_SHARE = 2  # a copy may take 1 / 2 of the memory that is available now, the page cache 1 / 2 of all
_WINDOW_SHARE = 4  # two windows take half of what the page cache may take
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
    # A power of two, so that a dataset keeps its blocks, and what caches have of them, when it
    # grows or when some of its objects change.
    block_rows = 1 << max(0, round(math.log2(block_bytes / row_bytes)))
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
    block: int | None = chosen.block_rows
    if sampling.shuffling.window is None:
        how = Shuffling("window", "store", "block", chosen.block_rows, chosen.window)
        how = replace(how, fetched_by="rank" if room is None else "node")
        how = replace(how, kind="settle", reason="cached") if fits else how
        sampling = replace(sampling, shuffling=how)
    if sampling.mode in ("window", "settle"):
        block = sampling.shuffling.block
    assert block is not None
    return sampling, block


def by_shards(sampling: Sampling, bounds: Sequence[int], cached: bool) -> Sampling:
    """Returns the sampling for a remote dataset that is fetched by shards.

    Args:
        sampling: The requested sampling.
        bounds: The first row of each shard, and the number of rows.
        cached: Whether there is a cache, which the ranks of a node share.
    """
    if sampling.shuffling.window is not None or not sampling.ours:
        return sampling
    how: dict[str, Any] = {"window": _WINDOW_SHARDS, "bounds": tuple(bounds)}
    how["fetched_by"] = "node" if cached else "rank"
    return _with(sampling, "window", "shards", "shard", **how)


def by_groups(
    sampling: Sampling, bounds: Sequence[int], groups: int, *, shared: bool = False
) -> Sampling:
    """Returns the sampling for table files whose rows are read one by one.

    Args:
        sampling: The requested sampling.
        bounds: The first row of each row group, and the number of rows.
        groups: The number of row groups that fit in memory.
        shared: Whether the ranks share the row groups, so that each reads some of them.
    """
    if not sampling.ours or sampling.shuffling.window is not None:
        return sampling
    if groups >= len(bounds) - 1:  # all fit
        return _with(sampling, "shuffle", "any row", "row group", bounds=tuple(bounds))
    how: dict[str, Any] = {"window": groups, "bounds": tuple(bounds)}
    how["fetched_by"] = "rank" if shared else None
    return _with(sampling, "window", "row groups", "row group", **how)


def window_bytes(dataset: MediaTable) -> int:
    """Returns the bytes of a window of row groups with images.

    They do not depend on the memory that is available, so that all ranks have the same windows.
    """
    if dataset.memory is None:
        return _WINDOW_BYTES
    return size_in_bytes(dataset.memory, "memory") // _WINDOWS


def groups_in_window(dataset: MediaTable) -> int:
    """Returns the number of row groups with images in a window.

    Raises:
        SchemaError: Row groups are so large that there is no memory for those in use.
    """
    largest, available = dataset.group_bytes, available_memory()
    if available and _WINDOWS * largest > available:
        raise SchemaError(
            f"{dataset.path}: its largest row group takes {largest / 2**20:,.0f} MiB, of which up "
            f"to {_WINDOWS} are in memory at a time, and {available / 2**20:,.0f} MiB are "
            "available. Write the file with smaller row groups (pyarrow: row_group_size=100), "
            "or pack it with fastio pack"
        )
    return max(1, window_bytes(dataset) // max(1, largest))


def by_whole_groups(sampling: Sampling, window_bytes: int) -> Shuffling:
    """Returns how table files are shuffled that are read by whole row groups."""
    if sampling.mode == "sequential":
        return sampling.how
    return Shuffling("row groups", "row groups", "row group", window_bytes=window_bytes)


def by_parts(sampling: Sampling, parts: Sequence[tuple[Sampling, int]]) -> Sampling:
    """Returns the sampling of several datasets one after the other.

    Args:
        sampling: The sampling of all rows.
        parts: The sampling and the number of rows of each dataset. If some are shuffled by windows,
            all rows are, in windows of the blocks of all.

    Raises:
        ValueError: they were opened with different numbers of partitions.
    """
    if not sampling.ours or sampling.draw is not None:
        return sampling
    blocks = [_block_bounds(own, rows) for own, rows in parts]
    windowed = [
        (own, cuts) for (own, _), cuts in zip(parts, blocks, strict=True) if cuts is not None
    ]
    if not windowed:
        return sampling
    mean = sum(int(cuts[-1]) for _, cuts in windowed) / sum(len(cuts) - 1 for _, cuts in windowed)
    bounds, first = [np.zeros(1, np.int64)], 0
    for (_, rows), cuts in zip(parts, blocks, strict=True):
        own = np.append(np.arange(0, rows, max(1, round(mean))), rows) if cuts is None else cuts
        bounds.append(own[1:] + first)
        first += rows
    fetchers = {own.shuffling.fetched_by for own, _ in windowed} - {None}
    return _with(
        replace(sampling, partitions=_partitions([own for own, _ in windowed])),
        "settle" if all(own.mode == "settle" for own, _ in windowed) else "window",
        "parts",
        window=min(own.shuffling.window or 64 for own, _ in windowed),
        bounds=tuple(np.concatenate(bounds).tolist()),
        fetched_by=None if not fetchers else "rank" if "rank" in fetchers else "node",
    )


def _partitions(parts: Sequence[Sampling]) -> int | None:
    """Returns the number of partitions with which datasets were opened; None if none was given."""
    given = sorted({own.partitions for own in parts if own.partitions is not None})
    if len(given) > 1:
        raise ValueError(
            f"the datasets were opened with different numbers of partitions, {given[0]} and "
            f"{given[1]}: pass the same partitions= to fastio.open for each of them"
        )
    return given[0] if given else None


def _block_bounds(sampling: Sampling, rows: int) -> npt.NDArray[np.int64] | None:
    """Returns the first row of each block or shard, and the number of rows; None: no windows."""
    how = sampling.shuffling
    if sampling.mode not in ("window", "settle"):
        return None
    if how.bounds is not None:
        return np.array(how.bounds, np.int64)
    return np.append(np.arange(0, rows, how.block or 64), rows).astype(np.int64)


def by_generator(
    sampling: Sampling,
    draw: Callable[[int], Permutation] | None,
    permute: Callable[[int, int], Permutation],
) -> Sampling:
    """Returns a sampling whose shuffled epochs have the permutations that a generator draws.

    A sampling that is sequential or shuffles by windows is returned unchanged.

    Args:
        sampling: The requested sampling.
        draw: Draws from the given generator; None if torch's default one decides.
        permute: As in `Sampling`.
    """
    if not sampling.ours or sampling.mode != "shuffle":
        return sampling
    if draw is None:
        return replace(sampling, permute=permute)
    return replace(sampling, order="shuffle", draw=draw)


def _with(
    sampling: Sampling,
    kind: ShufflingKind,
    reason: Reason,
    granularity: Granularity = "block",
    **sizes: Any,
) -> Sampling:
    return replace(sampling, shuffling=Shuffling(kind, reason, granularity, **sizes))


def place_table(
    dataset: Dataset, sampling: Sampling, resident: bool | None
) -> tuple[Sampling, bool | None]:
    """Returns the sampling for a local table, and whether to copy the table to memory.

    None in the place of the second: as the engine sees fit, since there is room for a copy.

    Args:
        dataset: A packed dataset on this machine, without images.
        sampling: The requested sampling.
        resident: Whether a copy was requested. If None, it is decided by the memory that is
            available now. Ranks on a machine share a copy as well as the page cache.
    """
    # Ranks need the same order, but the memory that is available now differs between them. So half
    # of all memory is taken to be free.
    memory = nominal_memory() // _SHARE
    room = min(available_memory() // _SHARE, memory)
    nbytes, rows = dataset.manifest.nbytes, len(dataset)
    if resident is None:
        scattered = not sampling.ours or sampling.mode == "shuffle"
        resident = None if scattered and _WORTH_BYTES <= nbytes <= room else False
    # Rows need no windows if a copy in memory was requested, or if the page cache can hold all of
    # the table.
    if resident or nbytes <= memory:
        return sampling, resident
    if sampling.mode == "shuffle" and sampling.order == "auto":
        block = max(1, _BLOCK_BYTES * rows // nbytes)
        window = min(_MOST_BLOCKS, max(2, memory // (_WINDOW_SHARE * _BLOCK_BYTES)))
        sampling = _with(sampling, "window", "memory", block=block, window=window)
    return sampling, resident


def is_beyond_memory(dataset: Dataset) -> bool:
    """Returns whether a local packed dataset is larger than the memory that is available now."""
    return dataset.manifest.nbytes > available_memory()


def reads_directly(dataset: Rows, sampling: Sampling) -> bool:
    """Returns whether the images of a local dataset are read past the page cache (O_DIRECT).

    Direct reads take a fraction of the processor time, but then every epoch reads from the disk. So
    they are used only if the part of the data that an epoch reads is more than twice as large as
    the memory of the machine or the limit of the container. With a user's sampler, the size of that
    part is not known. Samplers and repeated rows therefore use the page cache.

    Args:
        dataset: The dataset.
        sampling: The requested sampling.
    """
    if not sampling.ours or sampling.repeat > 1:
        return False
    read = 1.0
    if sampling.picked is not None:
        read = len(sampling.picked) / max(1, len(dataset))
    return dataset.shared_bytes * read > _BEYOND_CACHE * total_memory()
