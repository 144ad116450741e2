"""WebDataset tars in a store: an index is built in one pass, then files are read by ranges.

The index is kept in the cache, or in the user's cache folder, until a tar is replaced. Building it
reads the tars once, except for the contents of large files. Headers of tars have checksums; of file
contents only lengths and versions are checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.cache import Cache, CacheFolder, Source
from fastio.errors import SourceChanged, SourceNotFound, StoreError
from fastio.runtime.threads import DaemonPool
from fastio.sources.tar.dataset import TarDataset
from fastio.sources.tar.fields import Column
from fastio.sources.tar.index import TarIndex, build_index
from fastio.sources.tar.kept import default_cache, index_source, open_index
from fastio.sources.tar.names import expand_braces
from fastio.store import Stamp, Store, open_store

STORE_WINDOW_BYTES = 8 << 20  # the number of bytes read at a time by the pass over headers
_SIZES_AT_ONCE = 16
# Returns, for each of some rows, the path of a local file with the row's block and the offset in
# the tar at which that file begins; None if the block is not on this machine.
Staged = Callable[[NDArray[np.int64]], Sequence[tuple[str, int] | None]]


class StoreTars:
    """Reads tars in a store by their names.

    Attributes:
        store: The store of their folder.
        names: The names of all tars, in order.
        stamps: The version of each tar when it was opened. Only these versions are read.
    """

    def __init__(self, store: Store, stamps: Mapping[str, Stamp]) -> None:
        self.store = store
        self.names = list(stamps)
        self.stamps = dict(stamps)

    def size(self, name: str) -> int:
        """Returns the size of a tar in bytes."""
        return self.stamps[name].size

    def note_refetch(self) -> None:
        """See `TarReader`."""
        self.store.transfers.note_refetch()

    def read(self, name: str, offset: int, length: int) -> Any:
        """Returns the bytes [offset, offset + length), fewer only at the end of the tar."""
        stamp = self.stamps[name]
        length = min(length, stamp.size - offset)
        return self.store.read(name, offset, length, expect=stamp) if length > 0 else b""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Returns the bytes of several ranges (offset, length), in their order."""
        found: list[Any] = [b""] * len(ranges)
        places = [place for place, (_, length) in enumerate(ranges) if length]
        wanted = [ranges[place] for place in places]
        data = self.store.read_ranges(name, wanted, expect=self.stamps[name])
        for place, part in zip(places, data, strict=True):
            found[place] = part
        return found

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def open_store_tars(url: str, storage_options: Mapping[str, Any] | None = None) -> StoreTars:
    """Opens the tars that a URL refers to.

    Args:
        url, storage_options: As for `RemoteTars`.

    Raises:
        SourceNotFound: If there are no tars.
        StoreError: If the store does not answer.
    """
    folder, names = _split(url)
    store = open_store(folder, storage_options)
    return StoreTars(store, _stamps(store, names))


class RemoteTars(TarDataset):
    """The samples of WebDataset tars in a store; see `TarDataset`.

    Args:
        url: The URL of a tar or of a folder of tars, or a pattern such as
            "s3://bucket/train-{000000..000099}.tar".
        storage_options: for the store.
        cache: where the index and blocks of rows are kept; None: the index in the user's cache
            folder, blocks in memory as long as they are needed.
        fields, incomplete: as for `TarDataset`.
        reader: of the same tars, where they are open already.

    Attributes:
        store: The store of the tars' folder.
        cache: As given.
        stamps: The version of each tar that is read.

    Raises:
        SourceNotFound: If there are no tars.
        StoreError: If the store does not answer.
        ShardCorrupt, SchemaError: As for `TarDataset`.
    """

    whole = False  # shards are not fetched whole
    head_bytes_fetched = 0

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        cache: Cache | None = None,
        *,
        fields: Sequence[str] | None = None,
        incomplete: Any = "raise",
        reader: StoreTars | None = None,
    ) -> None:
        self._remote = url, storage_options, cache
        reader = reader or open_store_tars(url, storage_options)
        self.store = reader.store
        self.cache = cache
        self.stamps = reader.stamps
        stamps = [(name, stamp.key, stamp.size) for name, stamp in reader.stamps.items()]

        def build() -> TarIndex:
            return build_index(
                reader,
                reader.names,
                [stamp for _, stamp, _ in stamps],
                window_bytes=STORE_WINDOW_BYTES,
            )

        if cache is None:
            with default_cache() as own:
                index = open_index(self.store.url, stamps, own, build)
        else:
            cache.folder()  # creates the cache, or raises if it cannot be used
            index = open_index(self.store.url, stamps, cache, build)
        self.staged: Staged | None = None
        self._fill(self.store.url, index, reader, fields, incomplete)
        # Pieces in caches, and states, are of these versions.
        versions = "".join(f"\0{stamp}" for _, stamp, _ in stamps)
        self._fingerprint = xxhash.xxh3_64_hexdigest((self._fingerprint + versions).encode())
        self._reopen = None

    @property
    def remote_part(self) -> RemoteTars:
        """The dataset itself."""
        return self

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of the index; None without a cache.

        Raises:
            CacheError: If the cache cannot be used.
        """
        if self.cache is None:
            return None
        return index_source(self.store.url, self.stamps, self.cache)

    def segments(self, rows: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """Returns the parts (tar, first byte, end) that hold the files of consecutive rows."""
        tars, begins, ends = self.sample_extents(rows)
        found = []
        for tar in dict.fromkeys(tars.tolist()):
            here = tars == tar
            begin, end = int(begins[here].min()), int(ends[here].max())
            found.append((int(tar), begin, max(begin, end)))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (*self._remote, *self._given, self.fingerprint)

    def _read_bytes(
        self, column: Column, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> list[bytes]:
        """Reads the files of rows, from local blocks if possible, else from the store."""
        if self.staged is None:
            return super()._read_bytes(column, rows, at)
        offset = column.pick(self.index, "offsets", at)
        length = column.pick(self.index, "lengths", at)
        found: list[bytes | None] = []
        for place, start, size in zip(self.staged(rows), offset, length, strict=True):
            found.append(None if place is None else _read(place[0], start - place[1], int(size)))
        missing = [number for number, data in enumerate(found) if data is None]
        if missing:
            rest = super()._read_bytes(column, rows[missing], at[missing])
            for number, data in zip(missing, rest, strict=True):
                found[number] = data
        return [data for data in found if data is not None]


def _open_again(
    url: str, options: Any, cache: Cache | None, fields: Any, incomplete: Any, fingerprint: str
) -> RemoteTars:
    found = RemoteTars(url, options, cache, fields=fields, incomplete=incomplete)
    if found.fingerprint != fingerprint:
        raise SourceChanged(
            f"{found.path}: a tar was replaced after another process opened it: open the dataset "
            "again in that process"
        )
    return found


def _read(path: str, offset: int, length: int) -> bytes | None:
    """Reads bytes of a local file; returns None if they are not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return data if len(data) == length else None


def is_tar_url(url: str) -> bool:
    """Returns whether a URL ends like a tar."""
    return url.partition("?")[0].endswith(".tar")


def _split(url: str) -> tuple[str, list[str]]:
    """Returns the folder of tars, and their names in it; no names mean all tars in it."""
    if not is_tar_url(url):
        return url, []
    stem = url.partition("{")[0]
    folder, _, _ = stem.rpartition("/")
    pattern = url[len(folder) + 1 :]
    return folder, list(expand_braces(pattern))


def _stamps(store: Store, names: Iterable[str]) -> dict[str, Stamp]:
    """Returns the tars and their versions, from a listing if the store can list."""
    wanted = list(names)
    # Asked for first: if there is no answer, a listing that fails would only take as long again.
    first = {name: store.stat(name) for name in wanted[:1]}
    try:
        listed = {} if len(wanted) == 1 else dict(store.list())
    except (StoreError, SourceNotFound, NotImplementedError):
        if not wanted:
            raise
        listed = {}
    listed = first | listed
    if not wanted:
        wanted = sorted(name for name in listed if name.endswith(".tar"))
        if not wanted or len(wanted) < len(listed):
            raise SourceNotFound(
                f"{store.url} is neither a packed dataset nor a folder that contains only tars"
            )
    missing = [name for name in wanted if name not in listed]
    with DaemonPool(_SIZES_AT_ONCE, "fastio-stamps") as pool:
        listed.update(zip(missing, pool.map(store.stat, missing), strict=True))
    return {name: listed[name] for name in wanted}


__all__ = ["STORE_WINDOW_BYTES", "RemoteTars", "StoreTars", "is_tar_url", "open_store_tars"]
