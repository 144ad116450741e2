"""`Cache`: the user's settings of a cache, and the folder that each process opens for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from fastio.cache import report
from fastio.cache.eviction import NextUse
from fastio.cache.folder import CacheFolder
from fastio.cache.index import VERSION
from fastio.cache.report import CacheCheck, CacheStatus, Removed
from fastio.errors import warn
from fastio.runtime.lifecycle import Owner
from fastio.runtime.sizes import size_in_bytes
from fastio.store import local_only

# When a loader recodes images to block records; see `Cache`.
Pack = Literal["idle", "always", "never"]


class Cache:
    """A folder on a local disk that caches data for all processes of the machine.

    It holds data that was fetched from a store, and JPEG images (also local ones) that were recoded
    to block records, which decode several times faster than JPEG files: see docs/cache.md.

    Loaders of any datasets, runs and ranks may share one cache. Each piece of data is fetched once
    for all of them. When space is needed, the data whose next use is furthest in the future is
    deleted first. No clean-up is needed after a process is killed.

    The folder is created if it does not exist; one that is not yet a cache must be empty. By
    default only the user may use it: it is created with mode 0700, and it is an error if it belongs
    to somebody else or others may write to it. A shared folder is created with mode 2770 and its
    files with mode 0660.

    Args:
        path: Folder of the cache, on a local disk.
        budget: Maximum size in bytes, or as text such as 200GB (default: the free space of the
            disk, less a twentieth of the disk).
        shared: Use or create a cache that all members of the folder's group share; all of them are
            trusted with the data that loaders read.
        pack: When a loader recodes JPEG files to block records while its epochs run. "idle" (the
            default): in idle processor time or, if no processor is idle, in 5% of the time of the
            loader's threads. "always": in idle processor time and in 25% of the time of the
            loader's threads. "never": not at all; images are always read from their files.

    Raises:
        OptionError: the budget is not a size.
        ValueError: `pack` has another value.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        budget: int | str | None = None,
        *,
        shared: bool = False,
        pack: Pack = "idle",
    ) -> None:
        if pack not in get_args(Pack):
            raise ValueError(f"pack must be one of {', '.join(get_args(Pack))}, got {pack!r}")
        self.pack: Pack = pack
        self.path = Path(local_only(path, "the folder of a cache")).absolute()
        self.shared = shared
        self.budget = None if budget is None else size_in_bytes(budget, "budget")
        self._lock = threading.Lock()
        self._folder: CacheFolder | None = None
        self._owner = Owner()
        self._inherited: list[CacheFolder | None] = []
        self._told: set[tuple[str, int | None]] = set()

    def __repr__(self) -> str:
        shared = ", shared=True" if self.shared else ""
        pack = "" if self.pack == "idle" else f", pack={self.pack!r}"
        return f"Cache({str(self.path)!r}, budget={self.budget}{shared}{pack})"

    def folder(self, next_use: NextUse | None = None) -> CacheFolder:
        """Returns the open folder. It is opened again if it was deleted meanwhile.

        Pieces are ranked for eviction by `next_use`; None leaves the ranking unchanged.
        """
        self._owner.take_over(self._begin_anew)
        with self._lock:
            if self._folder is not None and not self._folder.is_there():
                self._folder.close()
                self._folder = None
            if self._folder is None:
                self._folder = CacheFolder(self.path, self.budget, shared=self.shared)
            if next_use is not None:
                self._folder.rank_by(next_use)
            return self._folder

    def _begin_anew(self) -> None:
        """Starts without a folder after a fork: the parent's must not be closed here."""
        # The list keeps the parent's folder alive, because garbage collection would close it.
        self._inherited.append(self._folder)
        self._lock, self._folder = threading.Lock(), None

    def give_up(self, error: Exception) -> None:
        """Warns that the cache cannot be used and why, once for each kind of error."""
        kind = type(error).__name__, getattr(error, "errno", None)
        with self._lock:  # several threads that fetch may fail at once
            new, self._told = kind not in self._told, self._told | {kind}
        if new:
            warn(f"reading without the cache {self.path}: {error}", RuntimeWarning)

    def status(self) -> CacheStatus:
        """Returns what the cache holds.

        Raises:
            CacheError: There is no cache in the folder, or it cannot be used.
        """
        return report.status(self._existing())

    def prune(self, to: int | str) -> Removed:
        """Deletes the least recently used pieces until the cache has a given size.

        Args:
            to: Size to reduce the cache to in bytes, or as text such as 50GB.

        Raises:
            OptionError: `to` is not a size.
            CacheError: As for `status`.
        """
        size = size_in_bytes(to, "to")
        return Removed(*self._existing().shrink(size))

    def clear(self, url: str | None = None) -> Removed:
        """Deletes all pieces, or those of one dataset, except what is being fetched.

        Args:
            url: Delete the data of this dataset only.

        Raises:
            CacheError: As for `status`, or there is nothing of that dataset.
        """
        return report.clear(self._existing(), url)

    def verify(self, advance: Callable[[int], object] | None = None) -> CacheCheck:
        """Compares every piece with its checksum, and deletes damaged ones and stray files.

        Args:
            advance: Called with the bytes of each piece when it was checked.

        Raises:
            CacheError: As for `status`.
        """
        return report.verify(self._existing(), advance)

    def _existing(self) -> CacheFolder:
        report.check_is_cache(self.path)
        return self.folder()

    def close(self) -> None:
        """Leaves the folder. Idempotent; it is opened again when it is needed."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            if self._folder is not None:
                self._folder.close()
            self._folder = None

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("path", "budget", "shared", "pack")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def default_cache() -> Cache:
    """Returns the cache for indexes that is used by default: one in the user's cache folder."""
    # Each version of the format has a folder of its own. The user has not chosen this folder, and
    # should get no error or warning about indexes of another version of fastio.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Cache(Path(base, "fastio", f"indexes-{VERSION}"))
