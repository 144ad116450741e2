"""Fetches the heads of shards: everything in a shard except the images' bytes.

A head consists of schema, footer and small columns, some tens of bytes a row. The manifest gives
its position, so that one request fetches it, and its hashes, which are verified before it is
parsed. A head that arrives damaged is fetched again. In memory it is stored in a file of the
shard's size with a hole in place of the images, so that the usual reader can read it. In the cache
it is a piece numbered by its shard. A shard without images is all head, and is mapped from the
cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastio.cache import Cache, CacheFolder, MemoryFile, Source
from fastio.errors import CacheError, ShardCorrupt, SourceChanged, SourceNotFound
from fastio.packed.compared import compare
from fastio.packed.manifest import Manifest
from fastio.packed.shard import ShardReader
from fastio.store import Store, join

HEADS = 0  # used as the number of rows of a block for sources whose pieces are heads
_ATTEMPTS = 6  # fetches of data that arrives damaged
_POLL_S = 0.005
_OTHERS_S = 30.0  # wait for a head that another process fetches; then it is fetched here too

Part = tuple[int, Any]  # offset in the shard, bytes-like object
# Opens a file as a shard: (path, shard, name, columns_first) -> reader. It verifies the head's
# hash, and the columns' if columns_first is true.
Open = Callable[[str | os.PathLike[str], int, str, bool], ShardReader]


class Heads:
    """Opens the heads of a dataset's shards. Thread-safe.

    Args:
        store, manifest: Those of the dataset.
        cache: The cache for heads. If None, they are not cached.
        whole: Whether shards are fetched whole.
        open_file: Opens a file that holds a shard's head.

    Attributes:
        bytes_fetched: The number of bytes that were fetched from the store.
    """

    def __init__(
        self, store: Store, manifest: Manifest, cache: Cache | None, whole: bool, open_file: Open
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._cache = cache
        self._whole = whole
        self._open_file = open_file
        self._source: tuple[CacheFolder, Source] | None = None
        self.bytes_fetched = 0

    def name(self, shard: int) -> str:
        """Returns a shard's URL, for messages."""
        return join(self._store.url, self._manifest.name(shard))

    def source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of heads; None without a cache.

        Raises:
            CacheError: If the cache cannot be used.
        """
        if self._cache is None:
            return None
        folder = self._cache.folder()
        kept = self._source
        if kept is None or kept[0] is not folder:
            manifest = self._manifest
            key = manifest.fingerprint, manifest.rows, HEADS, manifest.nbytes
            kept = self._source = folder, folder.source(self._store.url, *key)
        return kept

    def open(self, shard: int) -> ShardReader:
        """Opens a shard's head from the cache or from the store.

        Raises:
            SourceNotFound: If the shard is missing.
            ShardCorrupt: If it is damaged, or not the one that the manifest describes.
            StoreError: If the store does not answer.
        """
        try:
            kept = self.source()
            if kept is None:
                return self._fetch(shard)[1]
            return self._open_kept(*kept, shard)
        except CacheError as error:
            assert self._cache is not None
            self._cache.give_up(error)
            return self._fetch(shard)[1]

    def drop(self, shard: int) -> None:
        """Deletes a damaged head from the cache, so that it is fetched again.

        Raises:
            CacheError: If the cache cannot be used.
        """
        kept = self.source()
        if kept is not None:
            kept[0].drop(kept[1], [shard])

    def _open_kept(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader:
        """Opens a head from the cache. If it is missing, one of all processes fetches it."""
        deadline_s = time.monotonic() + _OTHERS_S
        size = sum(nbytes for _, nbytes in self._ranges(shard))
        while time.monotonic() < deadline_s:
            reader = self._kept(folder, source, shard)
            if reader is not None:
                return reader
            outcome = folder.claim(source, {shard: size})[shard]
            if outcome == "mine":
                return self._fetch_and_keep(folder, source, shard)
            if outcome == "no room":
                break
            if outcome == "ready" and self._kept(folder, source, shard) is None:
                folder.drop(source, [shard])  # the index lists it, but the file is missing
            time.sleep(_POLL_S)
        return self._fetch(shard)[1]

    def _kept(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader | None:
        path = folder.file(source, shard)
        try:
            found = folder.look(source, shard)
            if found == "damaged":
                self._store.transfers.note_refetch()
            if found != "whole":
                return None
            if self._whole:
                return self._compared(path, shard)
            data, parts, at = memoryview(path.read_bytes()), [], 0
            for offset, nbytes in self._ranges(shard):
                parts.append((offset, data[at : at + nbytes]))
                at += nbytes
            return self._reader(shard, parts)
        except (FileNotFoundError, SourceNotFound):
            return None
        except (ShardCorrupt, SourceChanged):
            self._store.transfers.note_refetch()
            folder.drop(source, [shard])
            return None

    def _fetch_and_keep(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader:
        stored = False
        try:
            parts, reader = self._fetch(shard)
            try:
                stored = folder.store(source, shard, [data for _, data in parts], misses=False)
            except (CacheError, OSError) as error:
                assert self._cache is not None
                self._cache.give_up(error)
        finally:
            if not stored:
                with suppress(CacheError):
                    folder.abandon(source, [shard])
        return reader

    def _ranges(self, shard: int) -> list[tuple[int, int]]:
        """Returns the ranges (offset, bytes) of a shard's head, ascending."""
        return self._manifest.file(shard).described()

    # --- From the store ---------------------------------------------------------------------------

    def _fetch(self, shard: int) -> tuple[list[Part], ShardReader]:
        for _ in range(_ATTEMPTS - 1):
            with suppress(ShardCorrupt):
                return self._fetch_once(shard)
            self._store.transfers.note_refetch()
        return self._fetch_once(shard)

    def _fetch_once(self, shard: int) -> tuple[list[Part], ShardReader]:
        parts = self._read(self._manifest.name(shard), self._ranges(shard))
        return parts, self._reader(shard, parts)

    def _read(self, name: str, ranges: list[tuple[int, int]]) -> list[Part]:
        data = self._store.read_ranges(name, ranges)
        self.bytes_fetched += sum(length for _, length in ranges)
        return [(offset, part) for (offset, _), part in zip(ranges, data, strict=True)]

    def _reader(self, shard: int, parts: list[Part]) -> ShardReader:
        file = MemoryFile(int(self._manifest.shard_bytes[shard]))
        for offset, data in parts:
            file.write(offset, data)
        reader = self._open_file(file.path, shard, self.name(shard), True)
        reader.check_offsets()
        file.close()  # the reader holds a mapping of it
        return reader

    def _compared(self, path: str | os.PathLike[str], shard: int) -> ShardReader:
        """Opens and verifies a shard in a file of the cache."""
        reader = self._open_file(path, shard, self.name(shard), False)
        compare(reader)
        return reader
