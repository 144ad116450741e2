"""All objects below a URL, listed in parallel, and kept in arrays.

A listing has 1,000 names a page, and a page can only be requested after the one before it. So a
large folder is divided by the folders in it, which are listed at the same time. A folder whose
first page has only its own objects is listed page after page: there is nothing to divide it by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.runtime.texts import Texts
from fastio.runtime.threads import WAIT_S, DaemonPool
from fastio.shown import without_secrets
from fastio.store.api import Store, open_store
from fastio.store.urls import split
from fastio.store.versions import Stamp

_AT_ONCE = 64  # requests for pages


@dataclass(frozen=True)
class Objects:
    """Objects of a store, about 100 bytes each.

    Attributes:
        names: Their names.
        sizes: int64 (n,), their sizes in bytes.
        versions: Their versions, as `Stamp.version` has them.
    """

    names: Texts
    sizes: NDArray[np.int64]
    versions: Texts

    @classmethod
    def of(cls, found: Sequence[tuple[str, Stamp]]) -> Objects:
        """Returns objects of a list of names and stamps."""
        return cls(
            Texts.of([name for name, _ in found]),
            np.fromiter((stamp.size for _, stamp in found), np.int64, len(found)),
            Texts.of([stamp.version for _, stamp in found]),
        )

    @classmethod
    def joined(cls, parts: Sequence[Objects]) -> Objects:
        """Returns the objects of several, one after the other."""
        sizes = [part.sizes for part in parts]
        return cls(
            Texts.joined([part.names for part in parts]),
            np.concatenate(sizes) if sizes else np.zeros(0, np.int64),
            Texts.joined([part.versions for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.names)

    def stamp(self, row: int) -> Stamp:
        """Returns the size and version of an object."""
        return Stamp(int(self.sizes[row]), self.versions[row])

    def taken(self, rows: NDArray[np.int64]) -> Objects:
        """Returns some objects by their numbers, int64 (n,), in their order."""
        return Objects(self.names.taken(rows), self.sizes[rows], self.versions.taken(rows))


def open_together(
    urls: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, list[str]]:
    """Opens the store that all URLs of a list are in, and returns it with their names in it.

    Raises:
        SchemaError: They are in several buckets or repositories, or on several hosts.
        StoreError: An option is not understood.
    """
    parts = [split(url) for url in urls]
    roots = dict.fromkeys(root for root, _ in parts)
    if len(roots) > 1:
        first, second, *_ = map(without_secrets, roots)
        raise SchemaError(
            f"all URLs of a list must be in one bucket or on one host, but these have {first} and "
            f"{second}: open one dataset for each, and join them with torch's ConcatDataset"
        )
    return open_store(next(iter(roots)), storage_options), [name for _, name in parts]


# The objects that were found in a folder, and the folders that are still to be listed.
_Found = tuple[Objects, list[str]]


def list_objects(store: Store, wanted: Callable[[str], Any] = bool, folder: str = "") -> Objects:
    """Returns the objects below a folder of a store, in no particular order.

    Args:
        store: The store.
        wanted: Returns whether an object with this name is returned.
        folder: The name of the folder; "" for all objects.

    Raises:
        StoreError: The store cannot list, or does not answer.
    """
    parts: list[Objects] = []
    pool = DaemonPool(_AT_ONCE, "fastio-list")
    try:
        running: set[Future[_Found]] = {pool.submit(_listed, store, folder, wanted)}
        while running:
            done, running = wait(running, WAIT_S, FIRST_COMPLETED)
            for ended in done:
                objects, folders = ended.result()
                parts.append(objects)
                running |= {pool.submit(_listed, store, each, wanted) for each in folders}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return Objects.joined(parts)


def _listed(store: Store, folder: str, wanted: Callable[[str], Any]) -> _Found:
    """Lists a folder; if it is large, one level of it."""

    def chosen(page: Sequence[tuple[str, Any]]) -> Objects:
        return Objects.of(store.stamped([each for each in page if wanted(each[0])]))

    pages = store.pages(folder)
    first = next(pages, [])
    second = next(pages, None)
    # A folder of one page is not worth dividing. Of a divided one, these two pages are requested
    # again as parts of its folders.
    if second is not None and _is_nested(folder, first):
        level = store.level(folder)
        if level is not None:
            return chosen(level[1]), level[0]
    return Objects.joined([*map(chosen, chain((first, second or ()), pages))]), []


def _is_nested(folder: str, page: Sequence[tuple[str, Any]]) -> bool:
    """Returns whether the last object of a page is in a folder below."""
    below = len(folder) + 1 if folder else 0
    return bool(page) and "/" in page[-1][0][below:]
