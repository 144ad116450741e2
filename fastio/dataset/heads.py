"""Heads of shards: all of a shard but the images' bytes, fetched and kept.

The head of a shard is its schema, footer and small columns, some tens of bytes a row. It usually
takes two ranges, fetched at once; it is checked by the shard's own hash. In memory it stands in a
file that has the shard's size and a hole where the images are, so that everything that reads shards
reads it. In the cache a head is a piece numbered by its shard. Shards of datasets without images
are heads altogether, checked by the manifest's hash and mapped from the cache as they are.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import xxhash

from fastio.cache import Cache, CacheFolder, MemoryFile, Source
from fastio.dataset.manifest import Manifest
from fastio.errors import CacheError, ShardCorrupt, SourceNotFound
from fastio.shard import ShardReader
from fastio.store import Store, join

HEADS = 0  # in place of the rows of a block, for sources whose pieces are heads
_ATTEMPTS = 6  # to fetch what comes damaged
_METADATA_BYTES = 8 << 10  # about what schema and footer take, at either end
_ROW_BYTES = 8, 40  # about what a row takes before and behind an image field's data
_PAGE = 4096
_POLL_S = 0.005
_OTHERS_S = 30.0  # then a head that another process fetches is fetched here too

Part = tuple[int, Any]  # offset in the shard, bytes-like object
Check = Callable[[ShardReader, int, str], ShardReader]


class Heads:
    """Opens the heads of a dataset's shards. Thread-safe.

    Args:
        store, manifest: the dataset's.
        cache: where heads are kept; None: nowhere.
        whole: whether shards are fetched whole.
        check: compares a reader with the manifest: (reader, shard, name) -> reader.

    Attributes:
        bytes_fetched: from the store.
    """

    def __init__(
        self, store: Store, manifest: Manifest, cache: Cache | None, whole: bool, check: Check
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._cache = cache
        self._whole = whole
        self._check = check
        self._source: tuple[CacheFolder, Source] | None = None
        self.bytes_fetched = 0

    def name(self, shard: int) -> str:
        """A shard's URL, for messages."""
        return join(self._store.url, self._manifest.name(shard))

    def source(self) -> tuple[CacheFolder, Source] | None:
        """Where heads are kept; None without a cache.

        Raises:
            CacheError: the cache cannot be used.
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
        """A shard's head from the cache, or from the store.

        Raises:
            SourceNotFound: the shard is missing.
            ShardCorrupt: it is damaged, or not the one that the manifest describes.
            StoreError: the store does not answer.
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
        """Has a head fetched anew: what is kept of it turned out to be damaged.

        Raises:
            CacheError: the cache cannot be used.
        """
        kept = self.source()
        if kept is not None:
            kept[0].drop(kept[1], [shard])

    def _open_kept(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader:
        """From the cache; what is not there yet is fetched by one of all processes."""
        deadline_s = time.monotonic() + _OTHERS_S
        size = self._bound(shard)
        while time.monotonic() < deadline_s:
            reader = self._kept(folder, source, shard)
            if reader is not None:
                return reader
            outcome = folder.claim(source, {shard: size})[shard]
            if outcome == "mine":
                return self._fetch_and_keep(folder, source, shard, size)
            if outcome == "no room":
                break
            if outcome == "ready" and self._kept(folder, source, shard) is None:
                folder.drop(source, [shard])  # said to be there, and is not
            time.sleep(_POLL_S)
        return self._fetch(shard)[1]

    def _kept(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader | None:
        path = folder.file(source, shard)
        try:
            if self._whole:
                return self._check(self._opened(path, shard), shard, str(path))
            return self._reader(shard, _unpacked(path.read_bytes()))
        except (FileNotFoundError, SourceNotFound):
            return None
        except (ShardCorrupt, ValueError, struct.error):
            folder.drop(source, [shard])
            return None

    def _fetch_and_keep(
        self, folder: CacheFolder, source: Source, shard: int, bound: int
    ) -> ShardReader:
        stored = False
        try:
            parts, reader = self._fetch(shard)
            data = [data for _, data in parts] if self._whole else _packed(parts)
            try:
                if sum(memoryview(part).nbytes for part in data) <= bound:
                    stored = folder.store(source, shard, data, misses=False)
            except (CacheError, OSError) as error:
                assert self._cache is not None
                self._cache.give_up(error)
        finally:
            if not stored:
                with suppress(CacheError):
                    folder.abandon(source, [shard])
        return reader

    def _bound(self, shard: int) -> int:
        """Bytes that a head may take, nearly always enough."""
        size = int(self._manifest.shard_bytes[shard])
        if self._whole:
            return size
        return min(size, 2 * sum(length for _, length in self._ends(shard))) + _PAGE

    def _ends(self, shard: int) -> list[tuple[int, int]]:
        """The ranges at a shard's ends that most probably have all of its head."""
        size, rows = int(self._manifest.shard_bytes[shard]), int(self._manifest.shard_rows[shard])
        images = len(self._manifest.schema.image_fields)
        front, back = (_METADATA_BYTES + rows * each for each in _ROW_BYTES)
        front, back = (-(-n // _PAGE) * _PAGE for n in (front, back * images))
        if front + back >= size:
            return [(0, size)]
        return [(0, front), (size - back, back)]

    # --- From the store ---------------------------------------------------------------------------

    def _fetch(self, shard: int) -> tuple[list[Part], ShardReader]:
        for _ in range(_ATTEMPTS - 1):
            with suppress(ShardCorrupt):
                return self._fetch_once(shard)
        return self._fetch_once(shard)

    def _fetch_once(self, shard: int) -> tuple[list[Part], ShardReader]:
        name = self._manifest.name(shard)
        if self._whole:
            parts = self._read(name, [(0, int(self._manifest.shard_bytes[shard]))])
            found, expected = xxhash.xxh3_64_hexdigest(parts[0][1]), self._manifest.xxh3(shard)
            if found != expected:
                raise ShardCorrupt(f"{self.name(shard)}: its xxh3 is {found}, expected {expected}")
            return parts, self._reader(shard, parts)
        ends = self._ends(shard)
        parts = self._read(name, ends)
        file = _sparse(int(self._manifest.shard_bytes[shard]), parts)
        layout = self._opened(file.path, shard)
        needed = layout.buffers(self._manifest.schema.image_fields)
        missing = [_rest(each, ends) for each in needed if not _covered(each, ends)]
        if missing:
            parts += self._read(name, missing)
        return parts, self._reader(shard, parts)

    def _read(self, name: str, ranges: list[tuple[int, int]]) -> list[Part]:
        data = self._store.read_ranges(name, ranges)
        self.bytes_fetched += sum(length for _, length in ranges)
        return [(offset, part) for (offset, _), part in zip(ranges, data, strict=True)]

    def _reader(self, shard: int, parts: list[Part]) -> ShardReader:
        file = _sparse(int(self._manifest.shard_bytes[shard]), parts)
        reader = self._check(self._opened(file.path, shard), shard, self.name(shard))
        file.close()  # mapped
        return reader

    def _opened(self, path: str | os.PathLike[str], shard: int) -> ShardReader:
        return ShardReader(path, self.name(shard), self._manifest.schema.record_layout)


def _sparse(size: int, parts: list[Part]) -> MemoryFile:
    """A file of a shard's size with some of its bytes."""
    file = MemoryFile(size)
    for offset, data in parts:
        file.write(offset, data)
    return file


def _covered(wanted: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    return any(a <= wanted[0] and sum(wanted) <= a + n for a, n in ranges)


def _rest(wanted: tuple[int, int], ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """What of a range lies behind the one that it begins in."""
    begin, end = wanted[0], sum(wanted)
    for offset, length in ranges:
        if offset <= begin < offset + length:
            begin = offset + length
    return begin, end - begin


def _packed(parts: list[Part]) -> list[Any]:
    """A head as a piece: number of parts, offset and length of each; then the parts."""
    lengths = [memoryview(data).nbytes for _, data in parts]
    table = [
        n for (offset, _), length in zip(parts, lengths, strict=True) for n in (offset, length)
    ]
    return [struct.pack(f"<{1 + len(table)}Q", len(parts), *table), *(data for _, data in parts)]


def _unpacked(data: bytes) -> list[Part]:
    (count,) = struct.unpack_from("<Q", data)
    if not 0 < count < 1000:
        raise ShardCorrupt("a head in the cache is damaged")
    table = struct.unpack_from(f"<{2 * count}Q", data, 8)
    at, parts = 8 + 16 * count, []
    for offset, length in zip(table[::2], table[1::2], strict=True):
        parts.append((offset, memoryview(data)[at : at + length]))
        at += length
    if at != len(data):
        raise ShardCorrupt("a head in the cache is damaged")
    return parts
