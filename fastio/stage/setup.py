"""Makes the stager that fetches the blocks of a remote dataset for a loader."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from fastio.errors import CacheError
from fastio.order.sampling import Sampling
from fastio.packed import Dataset
from fastio.packed.rows import Rows
from fastio.sources import Remote
from fastio.stage.blocks import Blocks
from fastio.stage.shard_blocks import ShardBlocks
from fastio.stage.shuffling import by_blocks, by_shards
from fastio.stage.stager import Numbers, Stager
from fastio.stage.tar_blocks import TarBlocks

_LEAST_AHEAD = 64 << 20
_BUDGET_SHARE = 4  # the share of a cache that blocks fetched ahead may take


def staged(
    dataset: Rows, sampling: Sampling, fields: Sequence[str] | None
) -> tuple[Sampling, Stager]:
    """Returns the sampling for a remote dataset, and a stager that fetches its blocks.

    Datasets without images are staged by whole shards. `fastio.stage.shuffling` chooses the windows
    in which rows are shuffled.

    Args:
        dataset: The dataset of the loader. It has a `remote_part`.
        sampling: The requested sampling.
        fields: The fields that are delivered. If None, all.

    Raises:
        CacheError: If the cache's folder cannot be used.
    """
    remote = dataset.remote_part
    assert remote is not None
    packed, bounds = remote.packed, dataset.shard_bounds()
    if remote.whole and packed is not None and bounds is not None:
        return _staged_by_shards(packed, bounds, sampling)
    return _staged_by_blocks(remote, sampling, fields)


def _staged_by_shards(
    dataset: Dataset, bounds: Numbers, sampling: Sampling
) -> tuple[Sampling, Stager]:
    sampling = by_shards(sampling, bounds.tolist())
    return sampling, Stager(ShardBlocks(dataset, bounds), dataset.cache)


def _staged_by_blocks(
    dataset: Remote, sampling: Sampling, fields: Sequence[str] | None
) -> tuple[Sampling, Stager]:
    room = None if dataset.cache is None else dataset.cache.folder().room
    sampling, rows = by_blocks(dataset, sampling, room)
    names = dataset.schema.image_fields
    blocks = blocks_of(dataset, rows, fields is None or any(name in names for name in fields))
    stager = Stager(blocks, dataset.cache)
    blocks.read_through(stager.staged_path)
    return sampling, stager


def blocks_of(dataset: Remote, block_rows: int, images: bool = True) -> Blocks:
    """Returns the blocks of a packed dataset or of tars; for the arguments see `Blocks`."""
    if dataset.packed is None:
        return TarBlocks(dataset, block_rows)
    if dataset.whole:
        return ShardBlocks(dataset.packed)
    return Blocks(dataset, block_rows, images)


def ahead_bytes(sampling: Sampling, stager: Stager) -> int:
    """Returns the bytes of blocks that are fetched ahead: at least two windows in window order."""
    wanted = _LEAST_AHEAD
    with suppress(CacheError):  # the stager goes on without the cache, and warns
        if stager.cache is not None:
            wanted = min(wanted, stager.cache.folder().room // _BUDGET_SHARE)
    if sampling.mode in ("window", "settle"):
        wanted = max(wanted, 2 * (sampling.window or 1) * stager.blocks.mean_bytes)
    return wanted
