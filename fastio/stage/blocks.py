"""A remote dataset as blocks of consecutive rows, which are fetched and cached as wholes.

Block b has the rows from b * block_rows on. The bytes of a block are those of `Remote.ranges`, one
range after the other: in a packed dataset ordered by shard, then by field, then by row; of tars the
parts that hold the rows' files. The blocks of a packed dataset without images are its shards, which
are fetched and verified whole; such a block has no bytes besides the shard.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.cache import edition
from fastio.errors import OptionError, SourceNotFound
from fastio.packed.layout import ImageReads, Range
from fastio.packed.shard import ShardReader
from fastio.runtime.ahead import in_order
from fastio.runtime.lifecycle import new_lock
from fastio.sources import MediaTable, Remote
from fastio.stage.directory import directory, directory_bytes
from fastio.store import Transfers

Numbers = npt.NDArray[np.int64]
# The bytes of some of the ranges of a block, by their indexes in `Blocks.ranges`.
Known = Mapping[int, bytes]
_KEPT_STARTS = 65536
_KEPT_RANGES = 8192  # of objects, about 700 bytes each
_HEADS_AHEAD = 16  # shards


class Blocks:
    """The blocks of a dataset. Thread-safe.

    Args:
        dataset: The dataset. It is not closed by this object.
        block_rows: The number of rows in a block; 0 if blocks are whole shards.
        images: Whether images are wanted. If False, blocks are empty, because heads suffice.
        bounds: int64 (shards + 1,), the loader's first row in each shard, and the number of rows,
            which may be windows of tokens. None if blocks are not whole shards.
    """

    def __init__(
        self,
        dataset: Remote,
        block_rows: int,
        images: bool = True,
        bounds: Numbers | None = None,
    ) -> None:
        self.dataset = dataset
        self.block_rows = block_rows
        self._images = images and bounds is None
        self._bounds = bounds
        rows, number = (block_rows, len(dataset)) if bounds is None else (1, len(bounds) - 1)
        self.mean_bytes = max(1, dataset.nbytes * rows // max(1, number))
        self._pieces: dict[int, int] = {}
        self._ranges: dict[int, list[Range]] = {}  # if rows are objects: each costs some time
        # By block and field, for each object: the offset in the block minus that in the object.
        self._shifts: dict[tuple[int, str], dict[int, int]] = {}
        self._lock = new_lock()

    @property
    def count(self) -> int:
        """The number of blocks."""
        if self._bounds is not None:
            return len(self._bounds) - 1
        return -(-len(self.dataset) // self.block_rows)

    @property
    def transfers(self) -> Transfers:
        """Counters of retries and of data that was fetched again, since the dataset was opened."""
        found: Transfers = self.dataset.store.transfers
        return found

    def of(self, rows: Numbers) -> Numbers:
        """Returns the blocks that rows need: int64, unique, in the order of their first rows."""
        blocks, first = np.unique(self._block(rows), return_index=True)
        return blocks[np.argsort(first, kind="stable")].astype(np.int64)

    def _block(self, rows: Numbers) -> Numbers:
        """Returns the block of each row."""
        if self._bounds is None:
            return rows // self.block_rows
        return np.searchsorted(self._bounds, rows, side="right").astype(np.int64) - 1

    def rows(self, block: int) -> tuple[int, int]:
        """Returns the rows [first, last) of a block."""
        if self._bounds is not None:
            return int(self._bounds[block]), int(self._bounds[block + 1])
        first = block * self.block_rows
        return first, min(first + self.block_rows, len(self.dataset))

    def piece(self, block: int) -> int:
        """Returns the number of a block's piece in a cache, which depends on its contents.

        Raises:
            ManifestInvalid: If the description of its shards is damaged.
        """
        piece = self._pieces.get(block)
        if piece is None:
            piece = edition(block, self._contents(block))
            with self._lock:
                if len(self._pieces) >= _KEPT_STARTS:
                    self._pieces.clear()
                self._pieces[block] = piece
        return piece

    def _contents(self, block: int) -> bytes:
        """Returns bytes that differ if the contents of the block do; see `Remote.contents`."""
        packed = self.dataset.packed
        if self._bounds is None or packed is None:
            return self.dataset.contents(*self.rows(block))
        # The block is a shard, whose rows may be documents while those of the block are windows.
        first = int(packed.manifest.first_row[block])
        return packed.contents(first, first + int(packed.manifest.shard_rows[block]))

    def size(self, block: int) -> int:
        """Returns the size of a block in bytes. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
        """
        nbytes = sum(each.length for each in self.ranges(block))
        return nbytes if self._images else 0

    def piece_bytes(self, block: int) -> int:
        """Returns the size in bytes of a block's piece in a cache; see `size`."""
        nbytes = self.size(block)
        if not nbytes or not self.dataset.separate:
            return nbytes
        first, last = self.rows(block)
        return nbytes + directory_bytes(last - first)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields each block and its size, in order. Heads are fetched some shards ahead.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If a head cannot be read.
        """
        packed, opened = self.dataset.packed, 0
        shards = range(0 if packed is None else packed.num_shards)
        heads = in_order(self._head, shards, _HEADS_AHEAD, ahead=_HEADS_AHEAD)
        for block in range(self.count):
            if packed is not None:
                last = int(packed.locate(np.array([self.rows(block)[1] - 1]))[0][0])
                for _ in itertools.islice(heads, max(0, last + 1 - opened)):
                    opened += 1
            yield block, self.size(block)

    def _head(self, shard: int) -> ShardReader:
        assert self.dataset.packed is not None
        return self.dataset.packed.shard(shard)

    def describes(self, rows: Numbers) -> bool:
        """Returns whether all that is needed to read rows is in memory, except bytes of blocks."""
        packed = self.dataset.packed
        if self._bounds is None or packed is None:
            return self.dataset.describes(rows)
        return all(map(packed.shards.readers.has, self.of(rows).tolist()))

    def whole_shards(self, block: int) -> list[Any]:
        """Returns the shard of a block that is one, which stays in memory while it is referenced.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If it cannot be read.
        """
        return [] if self._bounds is None else [self._head(block)]

    def ranges(self, block: int) -> list[Range]:
        """Returns the ranges of a block's bytes in the store. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
        """
        if self._bounds is not None:
            return []
        if not self.dataset.separate:
            return self.dataset.ranges(*self.rows(block))
        found = self._ranges.get(block)
        if found is None:
            found = self.dataset.ranges(*self.rows(block))
            with self._lock:
                if len(self._ranges) * self.block_rows >= _KEPT_RANGES:
                    self._ranges.clear()
                self._ranges[block] = found
        return found

    def tail(self, block: int) -> list[bytes]:
        """Returns what follows a block's parts in its piece: a directory if rows are objects."""
        return [directory(self.ranges(block))] if self.dataset.separate else []

    def check(self, block: int, parts: Sequence[Any]) -> str | None:
        """Returns what is wrong with the parts of a block's bytes; None if nothing is.

        Raises:
            StoreError: If an object has become shorter.
        """
        return self.dataset.check_parts(*self.rows(block), parts)

    def begun(self, block: int) -> list[tuple[int, list[int]]]:
        """Returns the pieces that have the first ranges of a block, with the sizes of the ranges.

        They are those of earlier versions of a packed dataset, which ended with these ranges.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt, ManifestInvalid: As for `ranges`.
        """
        packed = self.dataset.packed
        if packed is None or not self._images:
            return []
        first, last = self.rows(block)
        found = []
        # The newest version first: it has the most rows of the block.
        for rows in (version.rows for version in reversed(packed.manifest.history)):
            if first < rows < last:  # the version ended within the block
                lengths = [each.length for each in packed.ranges(first, rows)]
                found.append((edition(block, packed.contents(first, rows)), lengths))
        return found

    def fetch(self, block: int, known: Known | None = None) -> tuple[list[Any], str | None]:
        """Fetches the parts of a block's bytes, and returns them with what is wrong with them, or
        None.

        Damaged data is fetched again. If it is damaged each time, it is damaged at the source.
        Zeros stand in place of an object that is gone or was replaced, if rows are objects.

        Args:
            block: The block.
            known: The bytes of some of its ranges, which are not fetched; see `Earlier`.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If they cannot be read.
            SourceChanged: If they are damaged and the dataset was replaced.
        """
        known = known or {}
        if self.dataset.separate:
            return self._fetch_objects(block, known)
        ranges, store = self.ranges(block), self.dataset.store
        for _ in store.transfers.fetches():
            parts: list[Any] = []
            for place, each in enumerate(ranges):
                part: Any = known.get(place)
                if part is None and each.length:
                    part = self._read(each)
                parts.append(b"" if part is None else part)
            problem = self.check(block, parts)
            if problem is None:
                return parts, None
            known = {}  # it may be these that are damaged
        # If the dataset was replaced, this raises the error: the block is not damaged.
        self.dataset.check_source()
        return parts, problem

    def _read(self, part: Range) -> Any:
        """Fetches a part. If it is gone, raises SourceChanged if the dataset was replaced."""
        try:
            store = self.dataset.store
            return store.read(part.name, part.offset, part.length, expect=part.expect)
        except SourceNotFound:
            self.dataset.check_source()
            raise

    def _fetch_objects(self, block: int, known: Known) -> tuple[list[Any], str | None]:
        """Fetches a block whose rows are objects; see `fetch`."""
        ranges = self.ranges(block)
        parts: list[Any] = [known.get(place) for place in range(len(ranges))]
        lacking = [place for place, part in enumerate(parts) if part is None]
        wanted = [ranges[place] for place in lacking]
        found = self.dataset.store.read_each(
            [(r.name, r.offset, r.length, r.expect) for r in wanted]
        )
        gone = [str(part) for part in found if isinstance(part, Exception)]
        for place, part in zip(lacking, found, strict=True):
            # Zeros keep the places of the other objects, whose rows can still be read.
            zeros = bytes(ranges[place].length)
            parts[place] = zeros if isinstance(part, Exception) else part
        problem = gone[0] if gone else self.check(block, parts)
        return parts, problem

    def read_through(self, staged_path: Callable[[int], str | None]) -> None:
        """Lets the dataset read values from staged blocks, if the blocks have them.

        Args:
            staged_path: A bound method that returns the path of a block that is on this machine,
                else None. Neither its object nor this one is kept alive: both refer to the dataset.
        """
        method, me = weakref.WeakMethod(staged_path), weakref.ref(self)

        def staged(rows: Numbers, files: Numbers) -> list[tuple[str, int] | None]:
            path_of, blocks = method(), me()
            if path_of is None or blocks is None:  # their loader is gone
                return [None] * len(rows)
            return blocks._staged(path_of, rows, files)

        self.dataset.read_through(staged)

    def _staged(
        self, staged_path: Callable[[int], str | None], rows: Numbers, files: Numbers
    ) -> list[tuple[str, int] | None]:
        """Returns each row's block; see `Staged`."""
        blocks = self._block(rows)
        paths = [staged_path(block) for block in blocks.tolist()]
        starts = (-self._shift(blocks, files, "")).tolist()
        return [
            None if path is None else (path, start)
            for path, start in zip(paths, starts, strict=True)
        ]

    def locate(self, field: str, rows: Numbers, reads: ImageReads) -> tuple[Numbers, Numbers]:
        """Returns the block of each row, and where its image begins there: int64 (n,) both.

        Args:
            field: The field of the images.
            rows: int64 (n,), global rows.
            reads: What `Rows.image_reads` returns for them.
        """
        blocks = self._block(rows)
        return blocks, reads.offset + self._shift(blocks, reads.file, field)

    def _shift(self, blocks: Numbers, files: npt.NDArray[Any], field: str) -> Numbers:
        """Returns the differences between offsets in blocks and offsets in objects, int64 (n,)."""
        pairs = zip(blocks.tolist(), files.tolist(), strict=True)
        return np.array([self._shifts_of(block, field)[file] for block, file in pairs], np.int64)

    def _shifts_of(self, block: int, field: str) -> dict[int, int]:
        """Returns the differences in a block by the number of the object."""
        shifts = self._shifts.get((block, field))
        if shifts is None:
            shifts, at = {}, 0
            for each in self.ranges(block):
                if each.field in ("", field):
                    shifts[each.file] = at - each.offset
                at += each.length
            with self._lock:
                if len(self._shifts) >= _KEPT_STARTS:
                    self._shifts.clear()
                self._shifts[block, field] = shifts
        return shifts


class GroupBlocks(Blocks):
    """The row groups of table files that are read ahead; see `Blocks`.

    A block is a row group in memory, which is there as long as the stager holds it.

    Args:
        dataset: The dataset.
        fields: The fields that are delivered; None for all.

    Attributes:
        grouped: The dataset.
    """

    def __init__(self, dataset: MediaTable, fields: Sequence[str] | None) -> None:
        super().__init__(dataset, 0, bounds=dataset.group_bounds)
        self.grouped = dataset
        self._fields = fields

    @property
    def transfers(self) -> Transfers:
        """Counters of the dataset's requests."""
        return self.grouped.transfers

    def whole_shards(self, block: int) -> list[Any]:
        """Returns the row group of a block, which stays in memory while it is referenced.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: If it cannot be read.
        """
        return [self.grouped.held(block, self._fields)]


def check_remote(dataset: Remote, url: str) -> None:
    """Raises OptionError if a dataset is local, because only remote data is staged."""
    if dataset.remote_part is None:
        raise OptionError(f"{url} is local: only data behind a URL is fetched into a cache")


def blocks_of(dataset: Remote, block_rows: int, images: bool = True) -> Blocks:
    """Returns the blocks of a dataset as it is fetched; for the arguments see `Blocks`."""
    if dataset.packed is not None and dataset.whole:
        return Blocks(dataset, 0, bounds=dataset.packed.shard_bounds())
    return Blocks(dataset, block_rows, images)
