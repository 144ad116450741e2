"""All shards of a dataset one after the other, for what must be known before the first batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from fastio.packed import Dataset
from fastio.packed.remote import RemoteDataset
from fastio.packed.shard import ShardReader
from fastio.runtime.threads import DaemonPool

_AHEAD = 8  # shards of a remote dataset that are fetched at once


def readers(dataset: Dataset, shards: Iterable[int]) -> Iterator[tuple[int, ShardReader]]:
    """Shards in the order that they are asked for in; remote ones are fetched ahead.

    Raises:
        SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
    """
    if not isinstance(dataset, RemoteDataset):
        yield from ((shard, dataset.shard(shard)) for shard in shards)
        return
    coming: deque[tuple[int, Future[ShardReader]]] = deque()
    with DaemonPool(_AHEAD, "fastio-shards") as pool:
        for shard in shards:
            coming.append((shard, pool.submit(dataset.shard, shard)))
            if len(coming) >= _AHEAD:
                first, reader = coming.popleft()
                yield first, reader.result()
        while coming:
            first, reader = coming.popleft()
            yield first, reader.result()
