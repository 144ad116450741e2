"""Shards in a store. Their heads are fetched whole, their images by byte ranges.

A head is everything in a shard except the images' bytes: schema, footer and small columns, some
tens of bytes a row. The manifest gives its position, so that one request fetches it, and its
hashes, which are verified before it is parsed. A head that arrives damaged is fetched again. In
memory it is stored in a file of the shard's size with a hole in place of the images, so that the
usual reader can read it. In the cache it is a piece numbered by its shard and its hash, so that
later versions of the dataset find it. A shard without images is all head, and is mapped from the
cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache, CacheFolder, MemoryFile, Source, memory_file
from fastio.errors import (
    CacheError,
    DatasetNotFound,
    ManifestInvalid,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
)
from fastio.packed.comparisons import compare
from fastio.packed.manifest import MANIFEST_NAME, Manifest, version_name
from fastio.packed.shard import ShardReader
from fastio.packed.shards import OpenShards, Shards, open_shard
from fastio.store import Stamp, Store, absolute_path, is_remote, join, open_store

HEADS = 0  # used as the number of rows of a block for sources whose pieces are heads
_POLL_S = 0.005
_OTHERS_S = 30.0  # wait for a head that another process fetches; then it is fetched here too
_KEPT_WHOLE_BYTES = 256 << 20  # of shards that were fetched whole and are not in use
_FETCHED_AT_ONCE = 16 << 20

Part = tuple[int, Any]  # offset in the shard, bytes-like object


class StoredShards(Shards):
    """The shards in a store. Opening one fetches its head.

    Files are not checked for changes, because all fetched data is compared with the manifest.

    Args:
        store: The store of the dataset's folder.
        cache: The cache for heads. If None, they are kept in memory while they are needed.
        version: The version of the dataset; None for the newest.

    Raises:
        DatasetNotFound: If there is no manifest, or no such version.
        SourceChanged: If the manifest of an older version belongs to another dataset.
        ManifestInvalid, FormatUnsupported: If it is damaged, or a newer fastio wrote it.
        StoreError: If the store does not answer.
    """

    store: Store

    def __init__(self, store: Store, cache: Cache | None, version: int | None = None) -> None:
        super().__init__(store.url, manifest=_open_version(store, version))
        self.store = store
        self.cache = cache
        self.whole = not self.manifest.schema.pictured
        if self.whole:
            memory = self.manifest.shard_bytes, _KEPT_WHOLE_BYTES
            self.readers = OpenShards(self.path, self._open, memory)
        self._source: tuple[CacheFolder, Source] | None = None

    def name(self, shard: int) -> str:
        """Returns a shard's URL, for messages."""
        return join(self.path, self.manifest.name(shard))

    def image_bytes(
        self, reader: ShardReader, field: str, shard: int, begin: int, end: int, crc32c: int
    ) -> NDArray[np.uint8]:
        """Fetches an image, again if it does not match its checksum; see `Shards`.

        Raises:
            SourceChanged: It is damaged or missing because the dataset was replaced.
            SourceNotFound: It is missing for another reason.
        """
        if self.whole:
            return reader.bytes_of(field)[begin:end]
        if begin == end:
            return np.empty(0, np.uint8)
        name, offset = self.manifest.name(shard), reader.extent(field)[0] + begin
        before = None
        for _ in self.store.transfers.fetches():
            try:
                data = np.frombuffer(self.store.read(name, offset, end - begin), np.uint8)
            except SourceNotFound:
                self.check_manifest()  # gives a better message if the dataset was replaced
                raise
            if _native.crc32c(data) == crc32c:
                return data
            if before is not None and np.array_equal(data, before):
                break  # it is damaged in the store, not on the way
            before = data
        self.check_manifest()
        return data  # damaged at the source: decoding it raises the error

    def renew(self, shards: Iterable[int]) -> bool:
        """See `Shards`. Deletes damaged heads from the cache too."""
        readers = self.readers
        damaged = [shard for shard in shards if readers.has(shard) and readers.get(shard).damaged]
        with suppress(CacheError):
            kept = self.source()
            if kept is not None:
                kept[0].drop(kept[1], map(self.manifest.piece, damaged))
        readers.forget(damaged)
        return bool(damaged)

    def _size(self, shard: int) -> int:
        return self.store.size(self.manifest.name(shard))

    def _pieces(self, shard: int, size: int) -> Iterator[Any]:
        return _parts_of(self.store, self.manifest.name(shard), size)

    def _check_opened(self, shard: int) -> None:
        """Does nothing: the bytes that were compared are all that there is."""

    def check_manifest(self) -> None:
        """See `Shards`."""
        # An error of the store, or an incomplete manifest, does not prove that the dataset was
        # replaced.
        with suppress(OSError, ManifestInvalid):
            newest = _fetch_manifest(self.store)
            if not self.manifest.is_version_of(newest):
                now, before = newest.fingerprint, self.manifest.fingerprint
                names = ", as before, but its shards have other names"
                raise SourceChanged(
                    f"{self.path} was replaced after it was opened: its fingerprint is {now}"
                    f"{names if now == before else f', expected {before}'}; open it again"
                )

    def kept_versions(self) -> list[int]:
        """See `Shards`."""
        return _kept_versions(self.store, self.manifest)

    def close(self) -> None:
        """Drops all readers and closes the store."""
        super().close()
        self.store.close()

    # --- Heads ------------------------------------------------------------------------------------

    def source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of heads; None without a cache."""
        if self.cache is None:
            return None
        folder = self.cache.folder()
        kept = self._source
        if kept is None or kept[0] is not folder:
            manifest = self.manifest
            key = manifest.lineage, manifest.rows, HEADS, manifest.nbytes
            kept = self._source = folder, folder.source(self.path, *key)
        return kept

    def _opened(self, shard: int) -> ShardReader:
        """Opens a shard's head from the cache or from the store."""
        try:
            kept = self.source()
            if kept is not None:
                return self._open_kept(*kept, shard)
        except CacheError as error:
            assert self.cache is not None
            self.cache.give_up(error)
        return self._fetch(shard)[1]

    def _open_kept(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader:
        """Opens a head from the cache. If it is missing, one of all processes fetches it."""
        deadline_s = time.monotonic() + _OTHERS_S
        size = sum(nbytes for _, nbytes in self._ranges(shard))
        piece = self.manifest.piece(shard)
        while time.monotonic() < deadline_s:
            reader = self._kept(folder, source, shard)
            if reader is not None:
                return reader
            outcome = folder.claim(source, {piece: size})[piece]
            if outcome == "mine":
                return self._fetch_and_keep(folder, source, shard)
            if outcome == "no room":
                break
            if outcome == "ready" and self._kept(folder, source, shard) is None:
                folder.drop(source, [piece])  # the index lists it, but the file is missing
            time.sleep(_POLL_S)
        return self._fetch(shard)[1]

    def _kept(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader | None:
        piece = self.manifest.piece(shard)
        path = folder.file(source, piece)
        try:
            found = folder.look(source, piece)
            if found == "damaged":
                self.store.transfers.note_refetch()
            if found != "whole":
                return None
            if self.whole:
                reader = open_shard(self.manifest, path, shard, self.name(shard))
                compare(reader)
                return reader
            data, parts, at = memoryview(path.read_bytes()), [], 0
            for offset, nbytes in self._ranges(shard):
                parts.append((offset, data[at : at + nbytes]))
                at += nbytes
            return self._reader(shard, parts)
        except (FileNotFoundError, SourceNotFound):
            return None
        except (ShardCorrupt, SourceChanged):
            self.store.transfers.note_refetch()
            folder.drop(source, [piece])
            return None

    def _fetch_and_keep(self, folder: CacheFolder, source: Source, shard: int) -> ShardReader:
        stored, piece = False, self.manifest.piece(shard)
        try:
            parts, reader = self._fetch(shard)
            try:
                stored = folder.store(source, piece, [data for _, data in parts], misses=False)
            except (CacheError, OSError) as error:
                assert self.cache is not None
                self.cache.give_up(error)
        finally:
            if not stored:
                with suppress(CacheError):
                    folder.abandon(source, [piece])
        return reader

    def _ranges(self, shard: int) -> list[tuple[int, int]]:
        """Returns the ranges (offset, bytes) of a shard's head, ascending."""
        return self.manifest.entry(shard).described()

    def _fetch(self, shard: int) -> tuple[list[Part], ShardReader]:
        """Fetches a head, again if it is damaged, until the same bytes come twice."""
        before: list[Part] = []
        for last in self.store.transfers.fetches():
            parts = self._fetch_once(shard)
            try:
                return parts, self._reader(shard, parts)
            except ShardCorrupt:
                if last or parts == before:
                    raise
            before = parts
        raise AssertionError("unreachable")

    def _fetch_once(self, shard: int) -> list[Part]:
        ranges = self._ranges(shard)
        data = self.store.read_ranges(self.manifest.name(shard), ranges)
        self.bytes_fetched += sum(length for _, length in ranges)
        return [(offset, part) for (offset, _), part in zip(ranges, data, strict=True)]

    def _reader(self, shard: int, parts: list[Part]) -> ShardReader:
        file = MemoryFile(int(self.manifest.shard_bytes[shard]))
        for offset, data in parts:
            file.write(offset, data)
        # A shard that has just arrived is verified as a whole, so that damage is found while the
        # shard can be fetched again.
        reader = open_shard(self.manifest, file.path, shard, self.name(shard), columns_first=True)
        reader.check_offsets()
        file.close()  # the reader holds a mapping of it
        return reader


def _kept_versions(store: Store, manifest: Manifest) -> list[int]:
    """Returns the numbers of a manifest's version and of those before it that the store has."""
    found = [each.version for each in manifest.history]
    return [*(n for n in found if store.exists(version_name(n))), manifest.version]


def _open_version(store: Store, version: int | None) -> Manifest:
    """Fetches the manifest of a version, by default the newest; see `StoredShards`."""
    newest = _fetch_manifest(store)
    if version in (None, newest.version):
        return newest
    kept = _kept_versions(store, newest)
    if version not in kept:
        raise DatasetNotFound(
            f"{store.url} has no version {version}: the versions that can be opened are "
            f"{', '.join(map(str, kept))}"
        )
    older = _fetch_manifest(store, version)
    if not older.is_version_of(newest):
        raise SourceChanged(
            f"{older.path} is not version {version} of {store.url}: its fingerprint is "
            f"{older.fingerprint}, which the newest manifest does not name"
        )
    return older


def _fetch_manifest(store: Store, version: int | None = None) -> Manifest:
    """Fetches the newest manifest, or that of an older version."""
    name = MANIFEST_NAME if version is None else version_name(version)
    data = before = None
    for last in store.transfers.fetches():
        try:
            before, data = data, store.read(name)
            file = memory_file([data])
            manifest = Manifest(store.url, file.path, version)
        except SourceNotFound as error:
            raise _not_found(store, name, error) from error
        except ManifestInvalid:  # it may have been damaged on the way
            if last or data == before:
                raise
        else:
            file.close()  # the manifest holds a mapping of it
            return manifest
    raise AssertionError("unreachable")


def newest_manifest(
    dst: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Manifest:
    """Returns the newest manifest of a dataset, mapped. That of a store is in a temporary file.

    Raises:
        As for `Dataset`.
    """
    if not is_remote(dst):
        return Manifest(absolute_path(dst))
    with open_store(str(dst), storage_options) as store:
        return manifest_on_disk(store)


def manifest_on_disk(store: Store) -> Manifest:
    """Fetches the newest manifest to a temporary file without a name, and maps it.

    Raises:
        As for `StoredShards`; OSError if the file cannot be written.
    """
    before = None
    for last in store.transfers.fetches():
        with tempfile.NamedTemporaryFile(prefix="fastio-") as file:
            try:
                digest = fetch_to(store, MANIFEST_NAME, file)
                file.flush()
                return Manifest(store.url, file.name)
            except SourceNotFound as error:
                raise _not_found(store, MANIFEST_NAME, error) from error
            except SourceChanged:  # replaced while it was being fetched
                if last:
                    raise
            except ManifestInvalid:  # as in `_fetch_manifest`
                if last or digest == before:
                    raise
                before = digest
    raise AssertionError("unreachable")


def fetch_to(store: Store, name: str, file: IO[bytes], expect: Stamp | None = None) -> str:
    """Copies an object to a file by parts, and returns a hash of it.

    Args:
        store, name, file: The object, and the file to write to.
        expect: The version of the object; None for the newest.
    """
    stamp, digest = expect or store.stat(name), xxhash.xxh3_64()
    for part in _parts_of(store, name, stamp.size, stamp):
        file.write(part)
        digest.update(part)
    return digest.hexdigest()


def _parts_of(
    store: Store, name: str, size: int, expect: Stamp | None = None
) -> Iterator[memoryview]:
    """Yields an object of `size` bytes in parts, of the version `expect` if it is given."""
    for begin in range(0, size, _FETCHED_AT_ONCE):
        yield store.read(name, begin, min(_FETCHED_AT_ONCE, size - begin), expect=expect)


def _not_found(store: Store, name: str, error: SourceNotFound) -> DatasetNotFound:
    return DatasetNotFound(
        f"{store.url} has no {name}: it is not a packed dataset, or was not copied completely "
        f"({error})"
    )
