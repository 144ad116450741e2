"""Packed datasets that lie in a store: what is known of the rows is fetched whole, images by
ranges.

A shard's head is all of it but the images' bytes: schema, footer and the small columns, some tens
of bytes a row. It is fetched when the first of its rows is needed, usually by two requests at once,
and checked by the shard's own hash. Here it stands in a file in memory that has the shard's size
and a hole where the images are, so that everything that reads shards reads it. Shards of datasets
without images are heads altogether.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache, CacheFolder, MemoryFile, Source, memory_file
from fastio.dataset.manifest import MANIFEST_NAME, Manifest
from fastio.dataset.packed import Dataset
from fastio.errors import CacheError, DatasetNotFound, ShardCorrupt, SourceNotFound
from fastio.shard import ShardReader
from fastio.store import Store, open_store

HEADS = 0  # in place of the rows of a block, for sources whose pieces are heads
_ATTEMPTS = 3  # to fetch what comes damaged
_KEPT_HEADS = 4096
_KEPT_WHOLE = 64  # shards that were fetched whole
_SMALL_SHARD = 256 << 10  # bytes: fetched whole
_VERIFY_BYTES = 16 << 20

Part = tuple[int, Any]  # offset in the shard, bytes-like object


@dataclass(frozen=True)
class Extent:
    """A range of one shard's bytes."""

    shard: int
    offset: int
    length: int


class RemoteDataset(Dataset):
    """A packed dataset in a store. Thread-safe; pickling it reopens it elsewhere.

    Args:
        url: of the folder that was packed or copied there.
        storage_options: for the store: see `fastio.store.open_store`.
        cache: where heads and images are kept; None: in memory, as long as they are needed.

    Attributes:
        store: where the shards are.
        cache: as given.
        whole: whether shards are fetched whole: there are no images.
        head_bytes_fetched: bytes of heads that came from the store.

    Raises:
        DatasetNotFound: there is no manifest.
        ManifestInvalid, FormatVersionUnsupported: it is damaged, or a newer fastio wrote it.
        StoreError: the store does not answer.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._given = url, storage_options, cache
        self.store: Store = open_store(url, storage_options)
        self.cache = cache
        try:
            file = memory_file([self.store.read(MANIFEST_NAME)])
        except SourceNotFound as error:
            raise DatasetNotFound(
                f"{self.store.url} has no {MANIFEST_NAME}: it is no packed dataset, or one that "
                f"was not copied to its end ({error})"
            ) from error
        super().__init__(self.store.url, Manifest(self.store.url, file.path))
        file.close()  # the manifest has mapped it
        self.whole = not self.schema.image_fields
        self._heads: OrderedDict[int, Future[ShardReader]] = OrderedDict()
        self._heads_lock = threading.Lock()
        self._pid = os.getpid()
        self._source: tuple[CacheFolder, Source] | None = None
        self.head_bytes_fetched = 0

    def shard(self, shard: int) -> ShardReader:
        """A shard's reader, whose head was fetched when it was first asked for.

        Its images' bytes read as zeros, unless the dataset has no images.

        Raises:
            SourceNotFound: the shard is missing.
            ShardCorrupt: it is damaged, or not the one that the manifest describes.
            StoreError: the store does not answer.
        """
        future, ours = self._head_future(shard)
        if ours:
            try:
                future.set_result(self._open_head(shard))
            except BaseException as error:
                with self._heads_lock:
                    self._heads.pop(shard, None)
                future.set_exception(error)
        return future.result()

    def _head_future(self, shard: int) -> tuple[Future[ShardReader], bool]:
        """The head that is there or on its way; or a new one, to be fetched by the caller."""
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: this dataset was closed")
        with self._heads_lock:
            if self._pid != os.getpid():
                # What the parent's threads were fetching comes to nobody here.
                done = {k: v for k, v in self._heads.items() if v.done()}
                self._heads, self._pid = OrderedDict(done), os.getpid()
            future = self._heads.get(shard)
            if future is not None:
                self._heads.move_to_end(shard)
                return future, False
            future = self._heads[shard] = Future()
            if len(self._heads) > (_KEPT_WHOLE if self.whole else _KEPT_HEADS):
                self._heads.popitem(last=False)
            return future, True

    def shard_name(self, shard: int) -> str:
        """A shard's URL, for messages."""
        return f"{self.store.url.rstrip('/')}/{self.manifest.name(shard)}"

    def extents(self, first: int, last: int) -> list[Extent]:
        """Where the images of rows [first, last) lie.

        They stand shard by shard, in each by field, each field's rows in order. Fetches heads.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: as `shard`.
        """
        found = []
        for shard, begin, end in self.spans(first, last):
            reader = self.shard(shard)
            for field in self.schema.image_fields:
                offsets = reader.offsets(field)
                offset, stop = int(offsets[begin]), int(offsets[end])
                found.append(Extent(shard, reader.data_offset(field) + offset, stop - offset))
        return found

    def spans(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Rows [first, last) as (shard, local begin, local end)."""
        first_row, rows = self.manifest.first_row, self.manifest.shard_rows
        shard = int(np.searchsorted(first_row, first, side="right")) - 1
        found = []
        while first < last:
            begin = first - int(first_row[shard])
            end = min(int(rows[shard]), last - int(first_row[shard]))
            found.append((shard, begin, end))
            first += end - begin
            shard += 1
        return found

    def check_rows(self, first: int, last: int, parts: Sequence[Any]) -> str | None:
        """Compares images' bytes with their checksums.

        Args:
            first, last: rows [first, last).
            parts: the bytes of `extents(first, last)`.

        Returns:
            What is wrong, naming the row; None if all are what was written.
        """
        supply = iter(parts)
        for shard, begin, end in self.spans(first, last):
            reader = self.shard(shard)
            for field in self.schema.image_fields:
                data = np.frombuffer(next(supply), np.uint8)
                starts = reader.offsets(field)[begin : end + 1]
                starts = starts - starts[0]
                expected = reader.fixed(f"{field}.crc32c")[begin:end]
                bad = _native.crc32c_mismatch(data, starts, expected)
                if bad >= 0:
                    return f"{self.shard_name(shard)} row {begin + bad}: wrong CRC-32C"
        return None

    def close(self) -> None:
        super().close()
        with self._heads_lock:
            self._heads.clear()
        self.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteDataset, self._given

    def _stored_bytes(
        self, reader: ShardReader, field: str, row: int, local: int
    ) -> NDArray[np.uint8]:
        if self.whole:
            return reader.view(field, local)
        shard = int(self.locate(np.array([row], np.int64))[0][0])
        begin, end = reader.offsets(field)[local : local + 2].tolist()
        if begin == end:
            return np.empty(0, np.uint8)
        name, offset = self.manifest.name(shard), reader.data_offset(field) + begin
        return np.frombuffer(self.store.read(name, offset, end - begin), np.uint8)

    # --- Heads ------------------------------------------------------------------------------------

    def _open_head(self, shard: int) -> ShardReader:
        """A shard's head from the cache, or from the store."""
        with suppress(CacheError, OSError, ShardCorrupt, struct.error):
            kept = self._kept_head(shard)
            if kept is not None:
                return kept
        for attempt in range(_ATTEMPTS):
            try:
                parts, reader = self._fetch_head(shard)
                break
            except ShardCorrupt:
                if attempt + 1 == _ATTEMPTS:
                    raise
        self.head_bytes_fetched += sum(memoryview(data).nbytes for _, data in parts)
        self._keep_head(shard, parts)
        return reader

    def _fetch_head(self, shard: int) -> tuple[list[Part], ShardReader]:
        name, size = self.manifest.name(shard), int(self.manifest.shard_bytes[shard])
        if self.whole or size <= _SMALL_SHARD:
            data = self.store.read(name)
            found, expected = xxhash.xxh3_64_hexdigest(data), self.manifest.xxh3(shard)
            if found != expected:
                raise ShardCorrupt(
                    f"{self.shard_name(shard)}: its xxh3 is {found}, expected {expected}"
                )
            parts: list[Part] = [(0, data)]
            return parts, self._reader_of(shard, parts)
        rows = int(self.manifest.shard_rows[shard])
        images = len(self.schema.image_fields)
        front = min(size, -(-(16384 + 9 * rows) // 4096) * 4096)
        back = max(front, size - -(-(16384 + 64 * rows * images) // 4096) * 4096)
        ranges = [(0, front), (back, size - back)] if back < size else [(0, front)]
        parts = self._read(name, ranges)
        file = _sparse(size, parts)
        layout = ShardReader(file.path, self.shard_name(shard))
        needed = layout.buffers(self.schema.image_fields)
        missing = [_cut(r, ranges) for r in needed if not _covered(r, ranges)]
        if missing:
            parts += self._read(name, missing)
        return parts, self._reader_of(shard, parts)

    def _read(self, name: str, ranges: list[tuple[int, int]]) -> list[Part]:
        data = self.store.read_ranges(name, ranges)
        return [(offset, part) for (offset, _), part in zip(ranges, data, strict=True)]

    def _reader_of(self, shard: int, parts: list[Part]) -> ShardReader:
        file = _sparse(int(self.manifest.shard_bytes[shard]), parts)
        name = self.shard_name(shard)
        reader = self._checked(ShardReader(file.path, name), shard, name)
        file.close()  # mapped
        return reader

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """Where heads are kept: pieces numbered by shard; None without a cache.

        Raises:
            CacheError: the cache cannot be used.
        """
        if self.cache is None:
            return None
        folder = self.cache.folder()
        if self._source is None or self._source[0] is not folder:
            manifest = self.manifest
            self._source = (
                folder,
                folder.source(
                    self.store.url, manifest.fingerprint, manifest.rows, HEADS, manifest.nbytes
                ),
            )
        return self._source

    def _kept_head(self, shard: int) -> ShardReader | None:
        kept = self.head_source()
        if kept is None:
            return None
        folder, source = kept
        path = folder.file(source, shard)
        try:
            if self.whole:
                return self._checked(ShardReader(path, self.shard_name(shard)), shard, str(path))
            return self._reader_of(shard, _unpacked(path.read_bytes()))
        except (FileNotFoundError, SourceNotFound):
            return None
        except (ShardCorrupt, ValueError, struct.error):
            folder.drop(source, [shard])
            return None

    def _keep_head(self, shard: int, parts: list[Part]) -> None:
        """Puts a head in the cache, if there is one and room in it."""
        try:
            kept = self.head_source()
            if kept is None:
                return
            folder, source = kept
            data = [data for _, data in parts] if self.whole else _packed(parts)
            size = sum(memoryview(part).nbytes for part in data)
            outcome = folder.claim(source, {shard: size})[shard]
            if outcome == "ready" and not folder.has(source, shard, size):
                folder.drop(source, [shard])
            elif outcome == "mine":
                try:
                    folder.store(source, shard, data)
                except OSError:
                    folder.abandon(source, [shard])
                    raise
        except (CacheError, OSError) as error:
            assert self.cache is not None
            self.cache.give_up(error)

    def _check_shard(self, shard: int) -> str | None:
        """Reads a shard from the store, in pieces, and compares it with the manifest."""
        name, size = self.manifest.name(shard), int(self.manifest.shard_bytes[shard])
        digest = xxhash.xxh3_64()
        try:
            found_size = self.store.size(name)
            if found_size != size:
                state = "truncated" if found_size < size else "too long"
                return f"{state}: {found_size:,} of {size:,} bytes"
            for offset in range(0, size, _VERIFY_BYTES):
                digest.update(self.store.read(name, offset, min(_VERIFY_BYTES, size - offset)))
        except SourceNotFound:
            return "missing"
        except OSError as error:
            return str(error)
        expected = self.manifest.xxh3(shard)
        if digest.hexdigest() != expected:
            return f"its xxh3 is {digest.hexdigest()}, expected {expected}"
        return None


def _sparse(size: int, parts: list[Part]) -> MemoryFile:
    """A file of a shard's size with some of its bytes."""
    file = MemoryFile(size)
    for offset, data in parts:
        file.write(offset, data)
    return file


def _covered(wanted: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    return any(a <= wanted[0] and sum(wanted) <= a + n for a, n in ranges)


def _cut(wanted: tuple[int, int], ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """What of a range lies behind those that it begins in."""
    begin, end = wanted[0], sum(wanted)
    for offset, length in ranges:
        if offset <= begin < offset + length:
            begin = offset + length
    return begin, end - begin


def _packed(parts: list[Part]) -> list[Any]:
    """A head as a piece of the cache: number of parts, offset and length of each; then the
    parts."""
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
