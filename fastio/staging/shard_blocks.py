"""Shards of a remote dataset without images as blocks: they are fetched whole, and checked whole.

Rows are the dataset's own, or windows of its tokens. A block has the number of its shard, under
which the cache keeps it (see `dataset.heads`); a block's bytes are nothing beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastio.dataset.remote import RemoteDataset
from fastio.formats import Loadable, PaddedDataset, TokenDataset
from fastio.shard import ShardReader
from fastio.staging.blocks import Blocks, Numbers, Places, Range


class ShardBlocks(Blocks):
    """The shards of a dataset as its blocks. Thread-safe; see `Blocks`.

    Args:
        dataset: a packed one without images.
        bounds: int64 (shards + 1,), the first of the loader's rows in each shard, and their number;
            None: the dataset's own rows.
    """

    def __init__(self, dataset: RemoteDataset, bounds: Numbers | None = None) -> None:
        super().__init__(dataset, 0, images=False)
        self._remote = dataset
        self.bounds = _row_bounds(dataset) if bounds is None else bounds
        self.mean_bytes = max(1, dataset.nbytes // max(1, dataset.num_shards))

    def of(self, rows: Numbers) -> Numbers:
        """The shards that rows need, int64, each once, in the order of their first rows."""
        shards, first = np.unique(
            np.searchsorted(self.bounds, rows, side="right") - 1, return_index=True
        )
        return shards[np.argsort(first, kind="stable")].astype(np.int64)

    def rows(self, block: int) -> tuple[int, int]:
        """The rows of a block, [first, last)."""
        return int(self.bounds[block]), int(self.bounds[block + 1])

    def size(self, block: int) -> int:
        """None: all of its bytes are the shard's own."""
        return 0

    def describes(self, rows: Numbers) -> bool:
        """Whether all shards of rows are there."""
        return all(self._remote.has_head(shard) for shard in self.of(rows).tolist())

    def whole_shards(self, block: int) -> list[ShardReader]:
        """The shard, which stays while somebody has it.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: it cannot be read.
        """
        return [self._remote.shard(block)]

    def ranges(self, block: int) -> list[Range]:
        """There are none beside the shard."""
        return []

    def check(self, block: int, parts: Sequence[Any]) -> None:
        """Nothing: shards are checked when they come."""

    def places(self, field: str, rows: Numbers) -> Places:
        """There are no images."""
        raise NotImplementedError


def shard_bounds(dataset: Loadable) -> Numbers:
    """The first row of each shard, and the number of rows, int64 (shards + 1,).

    Args:
        dataset: without images; or windows of the tokens of one, or its padded documents.
    """
    if isinstance(dataset, TokenDataset):
        return dataset.shard_bounds()
    packed = dataset.dataset if isinstance(dataset, PaddedDataset) else dataset
    assert isinstance(packed, RemoteDataset)
    return _row_bounds(packed)


def _row_bounds(dataset: RemoteDataset) -> Numbers:
    return np.append(dataset.manifest.first_row, dataset.manifest.rows).astype(np.int64)
