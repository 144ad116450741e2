"""Finds parts of a block in what a cache has of earlier versions of the dataset.

If a part of a block has changed, or rows were added to it, the block has another piece than before.
The parts that did not change are copied from the earlier piece, and only the others are fetched:

- The last block of a packed dataset ends with rows of a later version once the dataset has grown.
  The manifest says how many rows the earlier versions had, and so which pieces those blocks were.
- A block whose rows are objects ends with a directory of the objects, by which any of them is found
  again. Earlier pieces of the block and of its two neighbours are looked at, because rows move when
  objects are added or deleted.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from fastio.cache import CacheFolder, Source, block_of
from fastio.stage.blocks import Blocks, Known
from fastio.stage.directory import object_hash, objects_in, split


class Earlier:
    """The pieces of earlier versions of a dataset in a cache. Thread-safe.

    Args:
        folder, source: The cache, and where the pieces of all versions are.
        blocks: The blocks of the version that is read.
    """

    def __init__(self, folder: CacheFolder, source: Source, blocks: Blocks) -> None:
        self._folder, self._source, self._blocks = folder, source, blocks
        self._pieces: dict[int, list[int]] | None = None
        self._lock = threading.Lock()

    def parts(self, block: int) -> Known:
        """Returns those parts of a block that the cache has.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt, ManifestInvalid: As for `Blocks.ranges`.
            CacheError: The index cannot be used.
        """
        return self._objects(block) if self._blocks.dataset.separate else self._begun(block)

    def _begun(self, block: int) -> Known:
        for piece, lengths in self._blocks.begun(block):
            data = self._read(piece)
            if data is not None and len(data) == sum(lengths):
                return dict(enumerate(split(data, lengths)))
        return {}

    def _objects(self, block: int) -> Known:
        near = self._near()
        pieces = [piece for b in (block, block - 1, block + 1) for piece in near.get(b, ())]
        known: dict[int, bytes] = {}
        if not pieces:
            return known
        ranges = self._blocks.ranges(block)
        missing = {object_hash(each): place for place, each in enumerate(ranges)}
        for data in map(self._read, pieces):
            for found, part in objects_in(data or b""):
                place = missing.get(found)
                if place is not None and ranges[place].length == len(part):
                    known[missing.pop(found)] = part
            if not missing:
                break
        return known

    def _near(self) -> dict[int, list[int]]:
        """Returns the pieces of earlier versions that were there at the first call, by block."""
        with self._lock:
            if self._pieces is None:
                self._pieces = {}
                for piece in self._folder.ready(self._source):
                    block = block_of(piece)
                    now = block < self._blocks.count and self._blocks.piece(block) == piece
                    if not now:
                        self._pieces.setdefault(block, []).append(piece)
            return self._pieces

    def _read(self, piece: int) -> bytes | None:
        """Returns the bytes of a piece; None if it is not in the cache, or damaged."""
        if self._folder.look(self._source, piece) == "whole":
            with suppress(OSError):  # it was evicted meanwhile
                return self._folder.file(self._source, piece).read_bytes()
        return None
