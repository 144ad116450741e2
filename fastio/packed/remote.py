"""Packed datasets in a store. Columns are fetched whole, images by byte ranges."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache, CacheFolder, Source, memory_file
from fastio.errors import (
    CacheError,
    DatasetNotFound,
    FormatVersionUnsupported,
    ManifestInvalid,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
)
from fastio.packed.heads import HEADS, Heads
from fastio.packed.manifest import MANIFEST_NAME, Manifest
from fastio.packed.packed import Dataset, same_dataset
from fastio.packed.shard import ShardReader
from fastio.runtime.lifecycle import Owner
from fastio.store import Store, open_store

_KEPT_HEADS = 4096
_KEPT_WHOLE_BYTES = 256 << 20  # of shards that were fetched whole and are not in use
_ATTEMPTS = 6  # fetches of data that arrives damaged
_VERIFY_BYTES = 16 << 20


@dataclass(frozen=True)
class Extent:
    """A range of one shard's bytes."""

    shard: int
    offset: int
    length: int


class RemoteDataset(Dataset):
    """A packed dataset in a store. Thread-safe. Unpickling opens it again.

    Args:
        url: The URL of the folder that was packed or copied there.
        storage_options: Options of the store: see `fastio.store.open_store`.
        cache: The cache for heads and images. If None, they are kept in memory while needed.

    Attributes:
        store: The store of the shards.
        cache: As given.
        whole: Whether shards are fetched whole, because there are no images.

    Raises:
        DatasetNotFound: If there is no manifest.
        ManifestInvalid, FormatVersionUnsupported: If it is damaged, or a newer fastio wrote it.
        StoreError: If the store does not answer.
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
        super().__init__(self.store.url, self._fetch_manifest())
        self.whole = not self.schema.image_fields
        self._heads: OrderedDict[int, Future[ShardReader]] = OrderedDict()
        self._in_use: weakref.WeakValueDictionary[int, ShardReader] = weakref.WeakValueDictionary()
        self._heads_lock = threading.Lock()
        self._owner = Owner()
        self._fetch = Heads(self.store, self.manifest, cache, self.whole, self._opened)

    def _fetch_manifest(self) -> Manifest:
        for attempt in range(_ATTEMPTS):
            try:
                file = memory_file([self.store.read(MANIFEST_NAME)])
                manifest = Manifest(self.store.url, file.path)
            except SourceNotFound as error:
                raise DatasetNotFound(
                    f"{self.store.url} has no {MANIFEST_NAME}: it is no packed dataset, or one "
                    f"that was not copied to its end ({error})"
                ) from error
            except ManifestInvalid as error:  # it may have been damaged on the way
                if attempt + 1 == _ATTEMPTS or isinstance(error, FormatVersionUnsupported):
                    raise
                self.store.transfers.note_refetch()
            else:
                file.close()  # the manifest holds a mapping of it
                return manifest
        raise AssertionError("unreachable")

    @property
    def remote_part(self) -> RemoteDataset:
        """The dataset itself."""
        return self

    def shard(self, shard: int) -> ShardReader:
        """Returns a shard's reader. The shard's head is fetched at the first call.

        The bytes of its images read as zeros, unless the dataset has no images.

        Raises:
            SourceNotFound: If the shard is missing.
            ShardCorrupt: If it is damaged, or not the one that the manifest describes.
            StoreError: If the store does not answer.
        """
        future, ours = self._head_future(shard)
        if ours:
            try:
                reader = self._open_shard(shard)
                self._in_use[shard] = reader
                future.set_result(reader)
            except BaseException as error:
                with self._heads_lock:
                    self._heads.pop(shard, None)
                future.set_exception(error)
        return future.result()

    def _open_shard(self, shard: int) -> ShardReader:
        try:
            return self._fetch.open(shard)
        except (ShardCorrupt, SourceNotFound):
            self.check_manifest()  # gives a better message if the dataset was replaced
            raise

    def check_manifest(self) -> None:
        """Raises SourceChanged if the store holds another manifest now."""
        with suppress(OSError, ManifestInvalid):
            found = self._fetch_manifest().fingerprint
            if found != self.fingerprint:
                raise SourceChanged(
                    f"{self.path} was replaced after it was opened: its fingerprint is {found}, "
                    f"expected {self.fingerprint}; open it again"
                )

    def check_unchanged(self) -> None:
        """Does nothing, because all fetched data is compared with the opened manifest."""

    def look(self) -> None:
        """Does nothing; see `check_unchanged`."""

    def finish_epoch(self) -> None:
        """Does nothing; see `check_unchanged`."""

    def _check_file(self, reader: ShardReader) -> None:
        """Does nothing: the file is in memory, or in the cache, which may evict it."""

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """See `Dataset.gather_all`. A shard that was truncated in the cache is fetched again."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return super().gather_all(fields, rows)
            except ShardCorrupt:
                if not self.renew(rows):
                    raise
        return super().gather_all(fields, rows)

    def renew(self, rows: NDArray[np.int64]) -> bool:
        """Fetches damaged shards of some rows again. Returns False if none is damaged."""
        return self.renew_shards([group.shard for group in self.by_shard(rows)])

    def renew_shards(self, shards: Iterable[int]) -> bool:
        """Fetches those of the shards again that are damaged; see `renew`."""
        damaged = [shard for shard in shards if self.is_kept(shard) and self.shard(shard).damaged]
        for shard in damaged:
            with suppress(CacheError):
                self._fetch.drop(shard)
        self.forget(damaged)
        return bool(damaged)

    def forget(self, shards: Iterable[int]) -> None:
        with self._heads_lock:
            for shard in shards:
                self._heads.pop(shard, None)
                self._in_use.pop(shard, None)

    def is_kept(self, shard: int) -> bool:
        return self.has_head(shard)

    def has_head(self, shard: int) -> bool:
        """Returns whether `shard` would return without a fetch."""
        if not self._owner.is_here:
            return False
        with self._heads_lock:
            future = self._heads.get(shard)
            return future is not None and future.done()

    def _head_future(self, shard: int) -> tuple[Future[ShardReader], bool]:
        """Returns the future of a head, and whether it is new and the caller has to fetch it."""
        self._owner.take_over(self._after_fork)
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: this dataset was closed")
        with self._heads_lock:
            future = self._heads.get(shard)
            if future is not None:
                self._heads.move_to_end(shard)
                return future, False
            future = self._heads[shard] = Future()
            reader = self._in_use.get(shard)
            if reader is not None:
                future.set_result(reader)
            self._forget_heads()
            return future, reader is None

    def _forget_heads(self) -> None:
        """Drops the least recently used heads if there are too many."""
        kept = len(self._heads)
        if self.whole:
            latest = self.manifest.shard_bytes[list(reversed(self._heads))]
            kept = max(1, int(np.searchsorted(np.cumsum(latest), _KEPT_WHOLE_BYTES, "right")))
        while len(self._heads) > min(kept, _KEPT_HEADS):
            self._heads.popitem(last=False)

    def _after_fork(self) -> None:
        """Resets locks and pending fetches in a forked child, which has none of the threads."""
        done = {k: v for k, v in self._heads.items() if v.done()}
        self._lock, self._heads_lock = threading.Lock(), threading.Lock()
        self._heads = OrderedDict(done)

    @property
    def nbytes(self) -> int:
        """The size of all shards in bytes."""
        return self.manifest.nbytes

    @property
    def head_bytes_fetched(self) -> int:
        """The number of bytes of heads that were fetched from the store."""
        return self._fetch.bytes_fetched

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of heads, whose pieces are numbered by shard; or
        None.

        Raises:
            CacheError: If the cache cannot be used.
        """
        return self._fetch.source()

    def extents(self, first: int, last: int) -> list[Extent]:
        """Returns the ranges of the images of rows [first, last). Fetches heads.

        They are ordered by shard and then by field. Each covers a field's rows in order.

        Raises:
            StoreError, SourceNotFound, ShardCorrupt: As for `shard`.
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
        """Splits rows [first, last) by shard: returns (shard, local begin, local end)."""
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
            first, last: The rows [first, last).
            parts: The bytes of `extents(first, last)`.

        Returns:
            A description of the first problem, which names the row; None if all bytes are right.
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
                    return f"{self._fetch.name(shard)} row {begin + bad}: wrong CRC-32C"
        return None

    def close(self) -> None:
        super().close()
        with self._heads_lock:
            self._heads.clear()
        self.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._given, self.fingerprint)

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
        expected = int(reader.fixed(f"{field}.crc32c")[local])
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.store.transfers.note_refetch()
            data = np.frombuffer(self.store.read(name, offset, end - begin), np.uint8)
            if _native.crc32c(data) == expected:
                return data
        self.check_manifest()
        return data  # damaged at the source: decoding it raises the error

    def _check_shard(self, shard: int) -> str | None:
        """Reads a shard from the store in parts and compares it with the manifest."""
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


def _reopened(
    given: tuple[str, Mapping[str, Any] | None, Cache | None], fingerprint: str
) -> RemoteDataset:
    """Opens a dataset again in another process.

    Raises:
        SourceChanged: If the store holds another dataset now.
    """
    return same_dataset(RemoteDataset(*given), fingerprint)


__all__ = ["HEADS", "Extent", "RemoteDataset"]
