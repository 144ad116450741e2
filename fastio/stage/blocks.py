"""A remote dataset as blocks of consecutive rows, which are fetched and cached as units.

Block b of a packed dataset has the rows from b * block_rows on. Its bytes are ordered by shard,
then by field, then by row. The blocks of tars have the parts of the tars that hold the rows' files.
The blocks of a packed dataset without images are its shards, which are fetched and verified whole.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.errors import StoreError
from fastio.packed import Dataset
from fastio.packed.layout import check_rows, spans
from fastio.packed.layout import extents as extents_of
from fastio.packed.shard import ShardReader
from fastio.runtime.ahead import in_order
from fastio.sources import Remote
from fastio.sources.tar.dataset import TarDataset
from fastio.store import Stamp

Numbers = npt.NDArray[np.int64]
_ATTEMPTS = 6  # data that arrives damaged each time is damaged at the source
_KEPT_STARTS = 65536
_HEADS_AHEAD = 16  # shards


class Range(NamedTuple):
    """A range of an object in the store.

    Attributes:
        name: The name of the object.
        offset: The first byte.
        length: The number of bytes.
        expect: The version of the object. None if the bytes are verified in another way.
    """

    name: str
    offset: int
    length: int
    expect: Stamp | None = None


class Extents(NamedTuple):
    """The positions of rows' images in their blocks: (n,) each.

    Attributes:
        block: int64, the number of the block.
        offset, length: int64, the image's bytes in the block.
    """

    block: Numbers
    offset: Numbers
    length: Numbers


class Blocks:
    """The blocks of a dataset. Thread-safe.

    Args:
        dataset: The dataset. It is not closed by this object.
        block_rows: The number of rows in a block.
        images: Whether images are wanted. If False, blocks are empty, because heads suffice.
    """

    def __init__(self, dataset: Any, block_rows: int, images: bool = True) -> None:
        self.dataset = dataset
        self.images = images
        self.block_rows = block_rows
        self.mean_bytes = max(1, dataset.nbytes * block_rows // max(1, len(dataset)))
        self._starts: dict[tuple[int, int], dict[str, int]] = {}
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-len(self.dataset) // self.block_rows)

    def of(self, rows: Numbers) -> Numbers:
        """Returns the blocks that rows need: int64, unique, in the order of their first rows."""
        blocks, first = np.unique(rows // self.block_rows, return_index=True)
        return blocks[np.argsort(first, kind="stable")].astype(np.int64)

    def rows(self, block: int) -> tuple[int, int]:
        """Returns the rows [first, last) of a block."""
        first = block * self.block_rows
        return first, min(first + self.block_rows, len(self.dataset))

    def size(self, block: int) -> int:
        """Returns the size of a block in bytes. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
        """
        extents = extents_of(self.dataset, *self.rows(block))
        return sum(length for _, _, length in extents) if self.images else 0

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields each block and its size, in order. Heads are fetched some shards ahead.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If a head cannot be read.
        """
        heads = in_order(
            self.dataset.shard, range(self.dataset.num_shards), _HEADS_AHEAD, ahead=_HEADS_AHEAD
        )
        opened = 0
        for block in range(self.count):
            last = spans(self.dataset, *self.rows(block))[-1][0]
            for _ in itertools.islice(heads, max(0, last + 1 - opened)):
                opened += 1
            yield block, self.size(block)

    def describes(self, rows: Numbers) -> bool:
        """Returns whether the heads of the rows' shards are in memory."""
        shards = np.unique(self.dataset.locate(rows)[0])
        return all(self.dataset.shards.readers.has(shard) for shard in shards.tolist())

    def whole_shards(self, block: int) -> list[ShardReader]:
        """Returns the shards of a block that are fetched whole: none in this class.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
        """
        return []

    def ranges(self, block: int) -> list[Range]:
        """Returns the ranges of a block's bytes in the store. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
        """
        name = self.dataset.manifest.name
        extents = extents_of(self.dataset, *self.rows(block))
        return [Range(name(shard), offset, length) for shard, offset, length in extents]

    def check(self, block: int, parts: Sequence[Any]) -> str | None:
        """Returns what is wrong with the parts of a block's bytes; None if nothing is."""
        problem: str | None = check_rows(self.dataset, *self.rows(block), parts)
        return problem

    def fetch(self, block: int) -> tuple[list[Any], str | None]:
        """Fetches the parts of a block's bytes, and returns them with what is wrong with them, or
        None.

        Damaged data is fetched again. If it is damaged each time, it is damaged at the source.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
            SourceChanged: If they are damaged and the dataset was replaced.
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
        """Checks whether the dataset was replaced, after bytes were wrong each time.

        Raises:
            SourceChanged: If it was replaced.
        """
        self.dataset.shards.check_manifest()

    def read_through(self, staged_path: Callable[[int], str | None]) -> None:
        """Lets the dataset read values from staged blocks. Does nothing: heads have the values.

        Args:
            staged_path: Returns the path of a block that is on this machine, else None.
        """

    def places(self, field: str, rows: Numbers) -> Extents:
        """Returns the positions of the images of global rows in their blocks."""
        block = rows // self.block_rows
        shards, local = self.dataset.locate(rows)
        # The row in its shard at which the block begins; negative if that is in an earlier shard.
        begins = block * self.block_rows - self.dataset.manifest.first_row[shards]
        wanted = np.stack((local, local + 1, np.maximum(begins, 0)))
        found = np.empty_like(wanted)
        for shard, places, _ in self.dataset.by_shard(rows):
            found[:, places] = self.dataset.shard(shard).offsets(field)[wanted[:, places]]
        starts = self._part_starts(shards, field, block, begins < 0)
        return Extents(block, found[0] - found[2] + starts, found[1] - found[0])

    def _part_starts(
        self, shards: Numbers, field: str, blocks: Numbers, across: npt.NDArray[np.bool_]
    ) -> Numbers:
        """Returns where the parts of a field in the rows' shards begin in their blocks' bytes.

        Args:
            across: Mask of the rows whose blocks begin in an earlier shard.
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
        """Returns where a shard's part of a field begins in a block's bytes."""
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
        for number, begin, end in spans(self.dataset, *self.rows(block)):
            reader = self.dataset.shard(number)
            for field in self.dataset.schema.image_fields:
                if number == shard:
                    found[field] = at
                offsets = reader.offsets(field)
                at += int(offsets[end]) - int(offsets[begin])
        return found


class ShardBlocks(Blocks):
    """The shards of a dataset without images as its blocks. Thread-safe; see `Blocks`.

    Rows are the dataset's own, or windows of its tokens. The cache keeps a block under the number
    of its shard (see `packed.stored`). A block has no bytes besides the shard.

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
        return all(self._remote.shards.readers.has(shard) for shard in self.of(rows).tolist())

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

    def places(self, field: str, rows: Numbers) -> Extents:
        """Raises NotImplementedError, because there are no images."""
        raise NotImplementedError


class TarBlocks(Blocks):
    """The blocks of a dataset of tars. Thread-safe; see `Blocks`."""

    def __init__(self, dataset: Any, block_rows: int) -> None:
        super().__init__(dataset, block_rows)
        self._tars: TarDataset = dataset

    def size(self, block: int) -> int:
        """Returns the size of a block in bytes."""
        return sum(end - begin for _, begin, end in self._segments(block))

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields each block and its size, in order."""
        for block in range(self.count):
            yield block, self.size(block)

    def describes(self, rows: Numbers) -> bool:
        """Returns False: fields other than images are read from the files in the blocks."""
        return False

    def ranges(self, block: int) -> list[Range]:
        """Returns the ranges of a block's bytes in the store."""
        names, stamps = self._tars.tars, self._tars.stamps
        return [
            Range(names[tar], begin, end - begin, stamps[names[tar]])
            for tar, begin, end in self._segments(block)
        ]

    def check(self, block: int, parts: Sequence[Any]) -> None:
        """Checks that all bytes have arrived. Contents cannot be checked: tars have no checksums.

        Raises:
            StoreError: If a tar has become shorter.
        """
        for (name, offset, length, _), part in zip(self.ranges(block), parts, strict=True):
            if memoryview(part).nbytes != length:
                where = f"{self._tars.store.url}: {name}"
                raise StoreError(f"{where} ends before byte {offset + length:,}")

    def check_source(self) -> None:
        """Does nothing, because every request asks for the version that was indexed."""

    def places(self, field: str, rows: Numbers) -> Extents:
        """Returns the positions of a field's files in the blocks of global rows."""
        block = rows // self.block_rows
        found = self._tars.image_reads(field, rows)
        offset = found.offset - self._starts_of(block, found.file.astype(np.int64))
        return Extents(block, offset, np.ascontiguousarray(found.length))

    def read_through(self, staged_path: Callable[[int], str | None]) -> None:
        """Lets the dataset read files from staged blocks; see `Blocks.read_through`."""
        self._tars.staged = partial(self._staged, staged_path)

    def _staged(
        self, staged_path: Callable[[int], str | None], rows: Numbers
    ) -> list[tuple[str, int] | None]:
        """Returns each row's block, as its path and the offset in the tar where it begins."""
        (tars, _, _), block = self._tars.sample_extents(rows), rows // self.block_rows
        starts = self._starts_of(block, tars)
        found: list[tuple[str, int] | None] = []
        for number, start in zip(block.tolist(), starts.tolist(), strict=True):
            path = staged_path(number)
            found.append(None if path is None else (path, start))
        return found

    def _segments(self, block: int) -> list[tuple[int, int, int]]:
        return self._tars.segments(np.arange(*self.rows(block), dtype=np.int64))

    def _starts_of(self, blocks: Numbers, tars: Numbers) -> Numbers:
        """Returns the byte of each row's tar that is first in its block, int64 (n,)."""
        starts = np.empty(len(blocks), np.int64)
        for block in np.unique(blocks).tolist():
            base = 0
            for tar, begin, end in self._segments(block):
                starts[(blocks == block) & (tars == tar)] = begin - base
                base += end - begin
        return starts


def blocks_of(dataset: Remote, block_rows: int, images: bool = True) -> Blocks:
    """Returns the blocks of a packed dataset or of tars; for the arguments see `Blocks`."""
    if dataset.packed is None:
        return TarBlocks(dataset, block_rows)
    if dataset.whole:
        return ShardBlocks(dataset.packed)
    return Blocks(dataset, block_rows, images)
