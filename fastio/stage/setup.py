"""How a loader of a remote dataset stages it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from fastio.errors import CacheError
from fastio.order.sampling import Sampling
from fastio.packed import Dataset
from fastio.sources import Loadable, Remote, RemoteTars
from fastio.stage.blocks import Blocks
from fastio.stage.choice import Cut, cut
from fastio.stage.shard_blocks import ShardBlocks
from fastio.stage.stager import Numbers, Stager
from fastio.stage.tar_blocks import TarBlocks

_LEAST_AHEAD = 64 << 20
_WINDOW_SHARDS = 4  # of datasets without images
_BUDGET_SHARE = 4  # what is fetched ahead may take of a cache


def staged(
    dataset: Loadable, sampling: Sampling, fields: Sequence[str] | None
) -> tuple[Sampling, Stager]:
    """The sampling that suits a remote dataset, and what brings its blocks.

    Shuffling by order "auto" is by windows of blocks, in which whatever is fetched is used up;
    where the cache has room for all of the dataset, from the second epoch on it is of all rows.
    Where there are no images, blocks are whole shards.

    Args:
        dataset: what is loaded; it has a `remote_part`.
        sampling: as it was asked for.
        fields: that are delivered; None for all.

    Raises:
        CacheError: the cache's folder cannot be used.
    """
    remote = dataset.remote_part
    assert remote is not None
    if isinstance(remote, Dataset) and remote.whole:
        bounds = dataset.shard_bounds()
        assert bounds is not None
        return _staged_by_shards(remote, bounds, sampling)
    return _staged_by_blocks(remote, sampling, fields)


def _staged_by_shards(
    dataset: Dataset, bounds: Numbers, sampling: Sampling
) -> tuple[Sampling, Stager]:
    if sampling.window is None and sampling.ours:
        sampling = replace(sampling, window=_WINDOW_SHARDS, bounds=tuple(bounds.tolist()))
    return sampling, Stager(ShardBlocks(dataset, bounds), dataset.cache)


def _staged_by_blocks(
    dataset: Remote, sampling: Sampling, fields: Sequence[str] | None
) -> tuple[Sampling, Stager]:
    room = None if dataset.cache is None else dataset.cache.folder().room
    chosen = _chosen_cut(dataset, sampling, room)
    if sampling.window is None:
        fits = room is not None and dataset.nbytes <= room
        sampling = replace(sampling, block=chosen.block_rows, window=chosen.window, settle=fits)
    assert sampling.block is not None
    rows = sampling.block if sampling.mode in ("window", "settle") else chosen.block_rows
    if not isinstance(dataset, RemoteTars):
        names = dataset.schema.image_fields
        images = fields is None or any(name in names for name in fields)
        return sampling, Stager(Blocks(dataset, rows, images), dataset.cache)
    blocks = TarBlocks(dataset, rows)
    stager = Stager(blocks, dataset.cache)
    dataset.staged = partial(blocks.staged, stager)
    return sampling, stager


def ahead_bytes(sampling: Sampling, stager: Stager) -> int:
    """Bytes of blocks that are fetched before they are needed: two windows' in window order."""
    wanted = _LEAST_AHEAD
    with suppress(CacheError):  # the stager does without it, and says so
        if stager.cache is not None:
            wanted = min(wanted, stager.cache.folder().room // _BUDGET_SHARE)
    if sampling.mode in ("window", "settle"):
        wanted = max(wanted, 2 * (sampling.window or 1) * stager.blocks.mean_bytes)
    return wanted


def _chosen_cut(dataset: Remote, sampling: Sampling, room: int | None) -> Cut:
    fits = room is not None and dataset.nbytes <= room
    scattered = not sampling.ours or sampling.order == "shuffle"
    if sampling.picked is not None and sampling.mode == "sequential":
        scattered = scattered or bool((np.diff(sampling.picked) < 0).any())
    return cut(len(dataset), dataset.nbytes, room, by_rows=scattered and not fits)
