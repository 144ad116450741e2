"""Blocks of rows of remote tars: the parts of the tars that hold the rows' files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fastio.errors import StoreError
from fastio.packed.shard import ShardReader
from fastio.sources.tar.dataset import TarDataset
from fastio.stage.blocks import Blocks, Numbers, Places, Range


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

    def whole_shards(self, block: int) -> list[ShardReader]:
        """Returns no shards: tars are not fetched whole."""
        return []

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

    def places(self, field: str, rows: Numbers) -> Places:
        """Returns the positions of a field's files in the blocks of global rows."""
        block = rows // self.block_rows
        found = self._tars.extents(field, rows)
        offset = found.offset - self._starts_of(block, found.tar)
        return Places(block, offset, np.ascontiguousarray(found.length))

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
