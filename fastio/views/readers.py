"""Reads the shards of a dataset one after the other, before the first batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastio.packed import Dataset
from fastio.packed.shard import ShardReader
from fastio.runtime.ahead import in_order

_AHEAD = 8  # shards of a remote dataset that are fetched at once


def readers(dataset: Dataset, shards: Iterable[int]) -> Iterator[tuple[int, ShardReader]]:
    """Yields shards with their numbers, in the given order; remote ones are fetched ahead.

    Raises:
        SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
    """
    if dataset.remote_part is None:
        yield from ((shard, dataset.shard(shard)) for shard in shards)
        return
    yield from in_order(
        lambda shard: (shard, dataset.shard(shard)), shards, _AHEAD, ahead=_AHEAD - 1
    )
