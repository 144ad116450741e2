"""Shards of a remote dataset without images as blocks, which are fetched and verified whole.

Rows are the dataset's own, or windows of its tokens. A block has the number of its shard, under
which the cache keeps it (see `packed.stored`). A block has no bytes besides the shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastio.packed import Dataset
from fastio.packed.shard import ShardReader
from fastio.stage.blocks import Blocks, Numbers, Places, Range


class ShardBlocks(Blocks):
    """The shards of a dataset as its blocks. Thread-safe; see `Blocks`.

    Args:
        dataset: A packed dataset without images.
        bounds: int64 (shards + 1,), the loader's first row in each shard, and the number of rows.
            If None, the dataset's own rows.
    """

    def __init__(self, dataset: Dataset, bounds: Numbers | None = None) -> None:
        super().__init__(dataset, 0, images=False)
        self._remote = dataset
        self.bounds = dataset.shard_bounds() if bounds is None else bounds
        self.mean_bytes = max(1, dataset.nbytes // max(1, dataset.num_shards))

    @property
    def count(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1

    def of(self, rows: Numbers) -> Numbers:
        """Returns the shards that rows need: int64, unique, in the order of their first rows."""
        shards, first = np.unique(
            np.searchsorted(self.bounds, rows, side="right") - 1, return_index=True
        )
        return shards[np.argsort(first, kind="stable")].astype(np.int64)

    def rows(self, block: int) -> tuple[int, int]:
        """Returns the rows [first, last) of a block."""
        return int(self.bounds[block]), int(self.bounds[block + 1])

    def size(self, block: int) -> int:
        """Returns 0, because a block has no bytes besides the shard."""
        return 0

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields each block and 0, because a block has no bytes besides the shard."""
        return ((block, 0) for block in range(self.count))

    def describes(self, rows: Numbers) -> bool:
        """Returns whether all shards of the rows are in memory."""
        return all(self._remote.is_kept(shard) for shard in self.of(rows).tolist())

    def whole_shards(self, block: int) -> list[ShardReader]:
        """Returns the shard, which stays in memory while it is referenced.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If it cannot be read.
        """
        return [self._remote.shard(block)]

    def ranges(self, block: int) -> list[Range]:
        """Returns no ranges, because a block has no bytes besides the shard."""
        return []

    def check(self, block: int, parts: Sequence[Any]) -> None:
        """Does nothing, because shards are verified when they arrive."""

    def places(self, field: str, rows: Numbers) -> Places:
        """Raises NotImplementedError, because there are no images."""
        raise NotImplementedError
