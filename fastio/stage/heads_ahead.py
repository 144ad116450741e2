"""Fetches the heads of shards some shards before they are needed."""

from __future__ import annotations

from fastio.packed.remote import RemoteDataset
from fastio.runtime.threads import DaemonPool
from fastio.sources import Remote

HEADS_AHEAD = 16  # shards


class HeadsAhead:
    """Fetches the heads of a packed dataset's shards. Does nothing for tars, which have none.

    Args:
        dataset: The dataset.
        pool: The threads that fetch.
    """

    def __init__(self, dataset: Remote, pool: DaemonPool) -> None:
        self._dataset = dataset
        self._pool = pool
        self._asked = 0

    def need(self, first: int, last: int) -> None:
        """Fetches the heads of the shards that follow rows [first, last), which are needed next."""
        if not isinstance(self._dataset, RemoteDataset):
            return
        shard = self._dataset.spans(first, last)[-1][0]
        until = min(shard + 1 + HEADS_AHEAD, self._dataset.num_shards)
        for number in range(self._asked, until):
            self._pool.submit(self._dataset.shard, number)  # errors are raised when it is used
        self._asked = max(self._asked, until)
