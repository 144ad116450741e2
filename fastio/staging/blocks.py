"""A remote dataset as blocks of consecutive rows, the pieces that are fetched and kept.

Block b has the rows from b * block_rows on. Its bytes are those of `RemoteDataset.extents`: shard
by shard, field by field, row by row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.shard import ShardReader
from fastio.store import Stamp

Numbers = npt.NDArray[np.int64]
_ATTEMPTS = 6  # what comes damaged each time is damaged at the source
_KEPT_STARTS = 65536


class Range(NamedTuple):
    """Bytes of an object in the store.

    Attributes:
        name: of the object.
        offset: the first byte.
        length: how many.
        expect: the version that they must be of; None where something else tells what they are.
    """

    name: str
    offset: int
    length: int
    expect: Stamp | None = None


class Places(NamedTuple):
    """Where the images of rows lie in their blocks: (n,) each.

    Attributes:
        block: int64, number of the block.
        offset, length: int64, of the image's bytes in it.
    """

    block: Numbers
    offset: Numbers
    length: Numbers


class Blocks:
    """The blocks of a dataset. Thread-safe.

    Args:
        dataset: not closed by this object.
        block_rows: rows of a block.
        images: False where only other fields are wanted: then blocks are empty, and heads suffice.
    """

    def __init__(self, dataset: Any, block_rows: int, images: bool = True) -> None:
        self.dataset = dataset
        self.images = images
        self.block_rows = block_rows
        self.mean_bytes = max(1, dataset.nbytes * block_rows // max(1, len(dataset)))
        self._starts: dict[tuple[int, int], dict[str, int]] = {}
        self._lock = threading.Lock()

    def of(self, rows: Numbers) -> Numbers:
        """The blocks that rows need, int64, each once, in the order of their first rows."""
        blocks, first = np.unique(rows // self.block_rows, return_index=True)
        return blocks[np.argsort(first, kind="stable")].astype(np.int64)

    def rows(self, block: int) -> tuple[int, int]:
        """The rows of a block, [first, last)."""
        first = block * self.block_rows
        return first, min(first + self.block_rows, len(self.dataset))

    def size(self, block: int) -> int:
        """Bytes of a block. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: they cannot be read.
        """
        extents = self.dataset.extents(*self.rows(block))
        return sum(extent.length for extent in extents) if self.images else 0

    def describes(self, rows: Numbers) -> bool:
        """Whether all that says what rows consist of is in memory."""
        shards = np.unique(self.dataset.locate(rows)[0])
        return all(self.dataset.has_head(shard) for shard in shards.tolist())

    def whole_shards(self, block: int) -> list[ShardReader]:
        """The shards of a block, where they are fetched whole: here, none are.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: they cannot be read.
        """
        return []

    def ranges(self, block: int) -> list[Range]:
        """Where the parts of a block's bytes are in the store. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: they cannot be read.
        """
        name = self.dataset.manifest.name
        extents = self.dataset.extents(*self.rows(block))
        return [Range(name(extent.shard), extent.offset, extent.length) for extent in extents]

    def check(self, block: int, parts: Sequence[Any]) -> str | None:
        """What is wrong with the parts of a block's bytes; None if they are what was written."""
        problem: str | None = self.dataset.check_rows(*self.rows(block), parts)
        return problem

    def fetch(self, block: int) -> tuple[list[Any], str | None]:
        """The parts of a block's bytes from the store, and what is wrong with them at the source.

        What comes damaged is fetched again; what is damaged each time is damaged there.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: they cannot be read.
            SourceChanged: they are damaged, and the dataset is another one by now.
        """
        ranges, store = self.ranges(block), self.dataset.store
        problem = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                store.transfers.note_refetch()
            parts: list[Any] = [
                store.read(name, offset, length, expect=expect) if length else b""
                for name, offset, length, expect in ranges
            ]
            problem = self.check(block, parts)
            if problem is None:
                break
        else:
            self.check_source()
        return parts, problem

    def check_source(self) -> None:
        """After bytes came wrong each time.

        Raises:
            SourceChanged: the dataset is another one by now.
        """
        self.dataset.check_manifest()

    def places(self, field: str, rows: Numbers) -> Places:
        """Where the images of global rows lie in their blocks."""
        block = rows // self.block_rows
        shards, local = self.dataset.locate(rows)
        # Where the block's part of the shard begins; negative where it begins in an earlier shard.
        begins = block * self.block_rows - self.dataset.manifest.first_row[shards]
        wanted = np.stack((local, local + 1, np.maximum(begins, 0)))
        found = np.empty_like(wanted)
        for shard, places, _ in self.dataset.by_shard(rows):
            found[:, places] = self.dataset.shard(shard).offsets(field)[wanted[:, places]]
        starts = self._part_starts(shards, field, block, begins < 0)
        return Places(block, found[0] - found[2] + starts, found[1] - found[0])

    def _part_starts(
        self, shards: Numbers, field: str, blocks: Numbers, across: npt.NDArray[np.bool_]
    ) -> Numbers:
        """Where the parts of a field in rows' shards begin in the bytes of their blocks.

        Args:
            across: whose blocks begin in an earlier shard.
        """
        starts = np.zeros(len(blocks), np.int64)
        if len(self.dataset.schema.image_fields) > 1:
            across = np.ones(len(blocks), np.bool_)
        if across.any():
            for shard, block in {
                *zip(shards[across].tolist(), blocks[across].tolist(), strict=True)
            }:
                starts[(shards == shard) & (blocks == block)] = self._start(block, shard, field)
        return starts

    def _start(self, block: int, shard: int, field: str) -> int:
        """Where a shard's part of a field begins in a block's bytes."""
        starts = self._starts.get((block, shard))
        if starts is None:
            starts = self._find_starts(block, shard)
            with self._lock:
                if len(self._starts) >= _KEPT_STARTS:
                    self._starts.clear()
                self._starts[block, shard] = starts
        return starts[field]

    def _find_starts(self, block: int, shard: int) -> dict[str, int]:
        at, found = 0, {}
        for number, begin, end in self.dataset.spans(*self.rows(block)):
            reader = self.dataset.shard(number)
            for field in self.dataset.schema.image_fields:
                if number == shard:
                    found[field] = at
                offsets = reader.offsets(field)
                at += int(offsets[end]) - int(offsets[begin])
        return found
