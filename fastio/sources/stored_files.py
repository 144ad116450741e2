"""Files of samples that are objects of a store: each row is one object, read in one version."""

from __future__ import annotations

import io
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.cache import Cache, CacheFolder, Source, keep, kept_source
from fastio.errors import CacheError, SourceNotFound, StoreError
from fastio.packed.layout import Range
from fastio.packed.remote import Staged
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import local_ranks
from fastio.runtime.files import read_part
from fastio.runtime.texts import Texts
from fastio.shown import without_secrets
from fastio.store import (
    OBJECTS_AT_ONCE,
    Objects,
    Stamp,
    Store,
    join,
    list_objects,
    open_together,
)

# A longer list is looked up in a listing of the folder that all of its objects are in.
_MOST_ASKED = 1000
# Ranks of one machine that start together use one listing, so that they have the same rows.
_RANKS_LISTING_S = 60.0
_PIECE = 0  # a listing is one


class StoredFiles:
    """The objects of a dataset's rows. Thread-safe; can be forked and pickled.

    Attributes:
        store: Their store.
        objects: Their names, sizes and versions, by row.
        place: Text that is the same for all versions of these objects: the URL of their folder, or
            that of the first one of a list.
    """

    def __init__(self, store: Store, objects: Objects, place: str | None = None) -> None:
        self.store = store
        self.objects = objects
        self.place = place or store.url
        self._staged: Staged | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_staged": None}  # blocks are those of this process's loader

    @property
    def nbytes(self) -> int:
        """The size of all objects in bytes."""
        return int(self.objects.sizes.sum())

    def digest(self) -> bytes:
        """Returns a hash of the sizes and versions."""
        objects = self.objects
        return xxhash.xxh3_128(objects.sizes.tobytes() + objects.versions.digest()).digest()

    def ranges(self, first: int, last: int) -> list[Range]:
        """Returns the objects of rows [first, last)."""
        objects, rows = self.objects, slice(first, last)
        found = zip(
            range(first, last),
            objects.names[rows],
            objects.sizes[rows].tolist(),
            objects.versions[rows],
            strict=True,
        )
        return [
            Range(name, 0, size, row, expect=Stamp(size, version))
            for row, name, size, version in found
        ]

    def read_through(self, staged: Staged) -> None:
        """Reads rows from staged blocks, which `staged` gives."""
        self._staged = staged

    def read(self, row: int, *, staged: bool = True) -> bytes:
        """Returns the bytes of a row's object.

        Args:
            row: The row.
            staged: Whether to read the block that has it, if it is on this machine.

        Raises:
            SourceNotFound, SourceChanged: It is gone, or has another version.
            StoreError: It cannot be read.
        """
        size = int(self.objects.sizes[row])
        data = self._read_staged(row, size) if staged else None
        # A block has zeros in place of an object that was not there. No file of sound begins so.
        if data is not None and (any(data[:64]) or any(data)):
            return data
        name, stamp = self.objects.names[row], self.objects.stamp(row)
        return bytes(self.store.read(name, 0, size, expect=stamp))

    def _read_staged(self, row: int, size: int) -> bytes | None:
        if self._staged is None:
            return None
        rows = np.array([row], np.int64)
        (block,) = self._staged(rows, rows)
        return None if block is None else read_part(block[0], -block[1], size)


def listed(
    store: Store,
    wanted: Callable[[str], bool],
    key: str,
    cache: Cache | None = None,
    listing_s: float | None = None,
) -> Objects:
    """Returns the wanted objects below the URL of a store, from a listing.

    Args:
        store: The store.
        wanted: Returns whether an object with this name is wanted. It is not called for a listing
            that was kept.
        key: What is wanted, as a text by which a listing is kept.
        cache: Where the listing is kept.
        listing_s: Seconds for which a listing that was kept is used. None: 60 if several ranks run
            on this machine, if it was made since their launcher began; else none.

    Raises:
        StoreError: The store cannot list, or does not answer.
    """
    earliest = 0.0
    if listing_s is None:
        listing_s = _RANKS_LISTING_S if local_ranks() > 1 else 0.0
        earliest = _launched_s()  # not one of an earlier job, whose files may have been replaced
    kept = None
    if cache is not None:
        with suppress(CacheError):  # whoever opens the cache for data reports it
            kept = kept_source(cache, "listing", store.url, key)
    if kept is not None and listing_s > 0:
        found = _kept_listing(*kept, listing_s, earliest)
        if found is not None:
            return found
    objects = list_objects(store, wanted)
    if kept is not None:
        with suppress(OSError, CacheError):
            _keep(*kept, objects)
    return objects


def _keep(folder: CacheFolder, source: Source, objects: Objects) -> None:
    """Keeps a listing in the cache, unless there is no space or another process is storing one."""
    data = io.BytesIO()
    np.savez(
        data,
        at=np.array([time.time()]),
        names=np.frombuffer(objects.names.data, np.uint8),
        name_ends=objects.names.ends,
        sizes=objects.sizes,
        versions=np.frombuffer(objects.versions.data, np.uint8),
        version_ends=objects.versions.ends,
    )
    # An existing piece is dropped first, because `keep` would not replace it.
    folder.drop(source, [_PIECE])
    keep(folder, source, _PIECE, data.getbuffer())


def _launched_s() -> float:
    """Returns when the process that started this one began, as `time.time`; 0 if it is unknown."""
    # Systems other than Linux have no /proc. In the file, the name of the process may contain
    # spaces. The start in ticks is field 22 (proc(5)), the 20th after the name.
    with suppress(AttributeError, OSError, ValueError, IndexError):
        after_name = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        since_boot_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
    return 0.0


def _kept_listing(
    folder: CacheFolder, source: Source, listing_s: float, earliest: float
) -> Objects | None:
    """Returns the listing in the cache; None if there is none, or it is too old or damaged."""
    try:
        if not folder.has(source, _PIECE):
            return None
        with np.load(folder.path_of(source, _PIECE), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        at = float(arrays["at"][0])
        # If the clock was set back, a listing with a time in the future would be valid for too
        # long.
        if at < earliest or not 0 <= time.time() - at <= listing_s:
            return None
        names = _texts(arrays["names"], arrays["name_ends"])
        versions = _texts(arrays["versions"], arrays["version_ends"])
        sizes = arrays["sizes"].astype(np.int64)
        whole = len(names) == len(versions) == len(sizes) and not (sizes < 0).any()
        return Objects(names, sizes, versions) if whole else None
    except (CacheError, OSError, ValueError, KeyError, IndexError):
        return None


def _texts(data: NDArray[Any], ends: NDArray[Any]) -> Texts:
    ends = ends.astype(np.int64)
    if len(ends) and (ends[0] < 0 or ends[-1] != len(data) or (np.diff(ends) < 0).any()):
        raise ValueError("the offsets of the names of a listing are damaged")
    return Texts(data.astype(np.uint8).tobytes(), ends)


def of_urls(
    urls: Iterable[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    may_lack: bool = False,
) -> StoredFiles:
    """Returns the objects of a list of URLs, in one bucket or on one host.

    Up to 1,000 are asked for one by one. More are looked up in a listing of the folder that all of
    them are in, if the store lists.

    Args:
        urls: The URLs.
        storage_options: Options of their file system.
        may_lack: Whether objects that do not exist get the size -1 and are not an error.

    Raises:
        SchemaError: They are in several buckets or on several hosts.
        SourceNotFound: There is no such object.
        StoreError: The store does not answer.
    """
    store, names = open_together(list(urls), storage_options)
    ask = _asked_for if len(names) <= _MOST_ASKED else _looked_up
    stamps = ask(store, names)
    missing = next((n for n, stamp in zip(names, stamps, strict=True) if stamp is None), None)
    if missing is not None and not may_lack:
        url = without_secrets(join(store.url, missing))
        raise SourceNotFound(f"{url}: there is no such object; remove it from the list of URLs")
    found = [(n, stamp or Stamp(-1, "")) for n, stamp in zip(names, stamps, strict=True)]
    # All lists of objects in one bucket have the same store. The URL of the first object
    # distinguishes them.
    return StoredFiles(store, Objects.of(found), join(store.url, names[0]))


def _asked_for(store: Store, names: Sequence[str]) -> list[Stamp | None]:
    """Returns the stamps of objects, which are requested; None for those that do not exist."""

    def ask(name: str) -> Stamp | None:
        with suppress(SourceNotFound):
            return store.stat(name)
        return None

    return list(in_order(ask, names, OBJECTS_AT_ONCE))


def _looked_up(store: Store, names: Sequence[str]) -> list[Stamp | None]:
    """Returns the stamps of objects from a listing; None for those that do not exist.

    Objects that a listing lacks are requested: pages of web servers may hide some. So are all
    objects of a store that does not list their folder.
    """
    folder = posixpath.commonpath([posixpath.dirname(name) for name in names])
    try:
        objects = list_objects(store, set(names).__contains__, folder)
    except (SourceNotFound, StoreError):  # web servers that list nothing, buckets that may not be
        return _asked_for(store, names)
    found: dict[str, Stamp | None] = {
        name: objects.stamp(place) for place, name in enumerate(objects.names)
    }
    lacking = [name for name in dict.fromkeys(names) if name not in found]
    found.update(zip(lacking, _asked_for(store, lacking), strict=True))
    return [found[name] for name in names]
