"""WebDataset tars in a store: the index is built by one pass over them and kept; the rest by
ranges.

The index is kept in the cache, or in the user's cache folder, until a tar's size changes. Building
it reads the tars once, but for the bodies of large files. Tars have no checksums: lengths are
checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.cache import Cache
from fastio.errors import SourceNotFound, StoreError
from fastio.formats.tars.dataset import TarDataset, default_cache
from fastio.formats.tars.fields import Column
from fastio.formats.tars.index import TarIndex, build_index, open_index
from fastio.formats.tars.names import expand_braces
from fastio.store import Store, join, open_store

STORE_WINDOW_BYTES = 8 << 20  # read at a time by the pass over headers
_SIZES_AT_ONCE = 16
# Where blocks of rows are, as far as they were brought here: rows -> path and offset of each in it,
# or None.
Staged = Callable[[NDArray[np.int64]], Sequence[tuple[str, int] | None]]


class StoreTars:
    """Tars of a store by their names there.

    Attributes:
        store: of their folder.
        names: all of them, in order.
    """

    def __init__(self, store: Store, sizes: Mapping[str, int]) -> None:
        self.store = store
        self.names = list(sizes)
        self._sizes = dict(sizes)

    def size(self, name: str) -> int:
        """Its size in bytes."""
        return self._sizes[name]

    def read(self, name: str, offset: int, length: int) -> Any:
        """The bytes [offset, offset + length), fewer only where the tar ends before."""
        length = min(length, self._sizes[name] - offset)
        return self.store.read(name, offset, length) if length > 0 else b""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Several of them, (offset, length) each, in their order."""
        found: list[Any] = [b""] * len(ranges)
        places = [place for place, (_, length) in enumerate(ranges) if length]
        data = self.store.read_ranges(name, [ranges[place] for place in places])
        for place, part in zip(places, data, strict=True):
            found[place] = part
        return found

    def close(self) -> None:
        """Lets go of the store."""
        self.store.close()


def open_store_tars(url: str, storage_options: Mapping[str, Any] | None = None) -> StoreTars:
    """The tars that a URL means.

    Args:
        url, storage_options: as `RemoteTars` takes them.

    Raises:
        SourceNotFound: there are no tars.
        StoreError: the store does not answer.
    """
    folder, names = _split(url)
    store = open_store(folder, storage_options)
    return StoreTars(store, _sizes(store, names))


class RemoteTars(TarDataset):
    """The samples of WebDataset tars in a store; see `TarDataset`.

    Args:
        url: of a tar, of a folder of tars, or a pattern such as
            "s3://bucket/train-{000000..000099}.tar".
        storage_options: for the store.
        cache: where the index and blocks of rows are kept; None: the index in the user's cache
            folder, blocks in memory as long as they are needed.
        fields, incomplete: as for `TarDataset`.

    Attributes:
        store: of the tars' folder.
        cache: as given.

    Raises:
        SourceNotFound: there are no tars.
        StoreError: the store does not answer.
        ShardCorrupt, SchemaError: as for `TarDataset`.
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
    ) -> None:
        self._remote = url, storage_options, cache
        reader = open_store_tars(url, storage_options)
        self.store = reader.store
        self.cache = cache
        stamps = [(name, str(reader.size(name))) for name in reader.names]

        def build() -> TarIndex:
            return build_index(
                reader,
                reader.names,
                [stamp for _, stamp in stamps],
                window_bytes=STORE_WINDOW_BYTES,
            )

        where = default_cache() if cache is None else _index_folder(cache)
        # By URL, since names are those within the store.
        place = where / xxhash.xxh3_64_hexdigest(join(self.store.url, "").encode())
        index = open_index(stamps, place, build)
        self.staged: Staged | None = None
        self._fill(self.store.url, index, reader, fields, incomplete)
        self._reopen = None

    def head_source(self) -> None:
        """Tars have no heads: the index is all that there is to know."""

    def segments(self, rows: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """The parts of tars that have the files of consecutive rows: (tar, first byte, end)."""
        tars, begins, ends = self.sample_extents(rows)
        found = []
        for tar in dict.fromkeys(tars.tolist()):
            here = tars == tar
            begin, end = int(begins[here].min()), int(ends[here].max())
            found.append((int(tar), begin, max(begin, end)))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (*self._remote, *self._given)

    def _read_bytes(
        self, column: Column, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> list[bytes]:
        """The files of rows: from blocks that were brought here, else from the store."""
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
    url: str, options: Any, cache: Cache | None, fields: Any, incomplete: Any
) -> RemoteTars:
    return RemoteTars(url, options, cache, fields=fields, incomplete=incomplete)


def _read(path: str, offset: int, length: int) -> bytes | None:
    """Bytes of a local file; None if they are not there."""
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
    """Whether a URL names tars by itself."""
    return url.partition("?")[0].endswith(".tar")


def _split(url: str) -> tuple[str, list[str]]:
    """The folder of tars, and their names in it; no names: all that are there."""
    if not is_tar_url(url):
        return url, []
    stem = url.partition("{")[0]
    folder, _, _ = stem.rpartition("/")
    pattern = url[len(folder) + 1 :]
    return folder, list(expand_braces(pattern))


def _sizes(store: Store, names: Iterable[str]) -> dict[str, int]:
    """The tars and their sizes; by listing them, where that is possible."""
    wanted = list(names)
    try:
        listed = dict(store.list())
    except (StoreError, SourceNotFound, NotImplementedError):
        if not wanted:
            raise
        listed = {}
    if not wanted:
        wanted = sorted(name for name in listed if name.endswith(".tar"))
        if not wanted or len(wanted) < len(listed):
            raise SourceNotFound(f"{store.url} is no packed dataset, and no folder of tars only")
    missing = [name for name in wanted if name not in listed]
    with ThreadPoolExecutor(_SIZES_AT_ONCE, "fastio-sizes") as pool:
        listed.update(zip(missing, pool.map(store.size, missing), strict=True))
    return {name: listed[name] for name in wanted}


def _index_folder(cache: Cache) -> Path:
    cache.folder()  # makes it, or says why it cannot be used
    return cache.path / "tars"


__all__ = ["STORE_WINDOW_BYTES", "RemoteTars", "StoreTars", "is_tar_url", "open_store_tars"]
