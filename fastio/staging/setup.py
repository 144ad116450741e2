"""How a loader of a remote dataset stages it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fastio.dataset.remote import RemoteDataset
from fastio.errors import CacheError
from fastio.formats import Remote, RemoteTars
from fastio.sampling import Sampling
from fastio.staging.blocks import Blocks
from fastio.staging.choice import Cut, cut
from fastio.staging.stager import Stager
from fastio.staging.tar_blocks import TarBlocks

_LEAST_AHEAD = 64 << 20
_BUDGET_SHARE = 4  # what is fetched ahead may take of a cache


def staged(
    dataset: Remote, sampling: Sampling, fields: Sequence[str] | None
) -> tuple[Sampling, Stager]:
    """The sampling that suits a remote dataset, and what brings its blocks.

    Shuffling by order "auto" is by windows of blocks, in which whatever is fetched is used up;
    where the cache has room for all of the dataset, from the second epoch on it is of all rows.

    Args:
        dataset: what is loaded.
        sampling: as it was asked for.
        fields: that are delivered; None for all.

    Raises:
        CacheError: the cache's folder cannot be used.
    """
    room = None if dataset.cache is None else dataset.cache.folder().room
    chosen = _chosen_cut(dataset, sampling, room)
    if sampling.window is None:
        fits = room is not None and dataset.nbytes <= room
        sampling = replace(
            sampling,
            block=chosen.block_rows,
            window=chosen.window,
            settle=fits and not dataset.whole,
        )
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


def ahead_bytes(dataset: Remote, sampling: Sampling, stager: Stager) -> int:
    """Bytes of blocks that are fetched before they are needed: two windows' in window order."""
    wanted = _LEAST_AHEAD
    with suppress(CacheError):  # the stager does without it, and says so
        if dataset.cache is not None:
            wanted = min(wanted, dataset.cache.folder().room // _BUDGET_SHARE)
    if sampling.mode in ("window", "settle"):
        wanted = max(wanted, 2 * (sampling.window or 1) * stager.blocks.mean_bytes)
    return wanted


def _chosen_cut(dataset: Remote, sampling: Sampling, room: int | None) -> Cut:
    fits = room is not None and dataset.nbytes <= room
    scattered = not sampling.ours or sampling.order == "shuffle"
    chosen = cut(len(dataset), dataset.nbytes, room, by_rows=scattered and not fits)
    if isinstance(dataset, RemoteDataset) and dataset.whole:
        return replace(chosen, block_rows=int(dataset.manifest.shard_rows[0]), window=4)
    return chosen
