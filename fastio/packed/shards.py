"""The open shards of a dataset, and those in a local folder.

`fastio.packed.stored` has the shards in a store.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.cache import CacheFolder, Source
from fastio.errors import DatasetClosed, FastioError, ShardCorrupt, SourceNotFound
from fastio.packed.comparisons import Comparisons
from fastio.packed.manifest import Manifest, version_name
from fastio.packed.shard import ShardReader, file_pieces
from fastio.runtime.lifecycle import Owner
from fastio.runtime.threads import wait_for
from fastio.store import Store

# How often files are checked for changes during an epoch, and how many shards each time. A network
# file system answers this many calls without a noticeable delay.
_LOOK_S = 0.25
_LOOKS = 8
# Mappings are cheap, but a process may have only so many (65530 by default on Linux).
_KEPT_SHARDS = 4096


@dataclass(frozen=True)
class ShardCheck:
    """The result of checking one shard: its name and size, and what is wrong with it or None."""

    name: str
    nbytes: int
    problem: str | None


class OpenShards:
    """The open shards of a dataset, ordered by last use. Thread-safe.

    Each shard is opened by one thread, for which others wait. A forked child keeps the open shards
    and forgets the openings that were in progress, because it has none of the threads.

    Args:
        path: The dataset's path or URL, for messages.
        open_shard: Opens a shard.
        memory: For shards that are held in memory, their sizes int64 (shards,) and the most bytes
            of them that are kept. If None, only their number is limited.
    """

    def __init__(
        self,
        path: str,
        open_shard: Callable[[int], ShardReader],
        memory: tuple[NDArray[np.int64], int] | None = None,
    ) -> None:
        self._path = path
        self._open = open_shard
        self._memory = memory
        self._kept: OrderedDict[int, ShardReader | Future[ShardReader]] = OrderedDict()
        self._in_use: weakref.WeakValueDictionary[int, ShardReader] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._owner = Owner()
        self._closed = False

    def get(self, shard: int) -> ShardReader:
        """Returns a shard's reader, which is opened if necessary; DatasetClosed after `close`."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            if self._closed:
                raise DatasetClosed(f"{self._path}: this dataset was closed: open it again")
            kept = self._kept.get(shard)
            opening: Future[ShardReader] | None = None
            if kept is not None:
                self._kept.move_to_end(shard)
            else:
                opening = Future()
                # Dropped from `_kept`, but alive in a batch: the file is not mapped a second time,
                # and the bytes of a shard in memory are not fetched again.
                reader = self._in_use.get(shard)
                self._kept[shard] = opening if reader is None else reader
                self._limit()
                if reader is not None:
                    return reader
        if isinstance(kept, ShardReader):
            return kept
        try:
            return self._opened(shard, opening) if kept is None else wait_for(kept)
        finally:
            kept = opening = None  # a future holds the error, whose traceback refers to this frame

    def has(self, shard: int) -> bool:
        """Returns whether `get` would return at once."""
        if not self._owner.is_here:  # a thread of the parent may have held the lock at the fork
            return False
        with self._lock:
            return isinstance(self._kept.get(shard), ShardReader)

    def all(self) -> list[ShardReader]:
        """Returns the readers that are open."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            return [kept for kept in self._kept.values() if isinstance(kept, ShardReader)]

    def forget(self, shards: Iterable[int]) -> None:
        """Makes the next `get` open the shards again."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            for shard in shards:
                self._kept.pop(shard, None)
                self._in_use.pop(shard, None)

    def close(self) -> None:
        """Drops all readers. Those that are in use stay valid."""
        self._owner.take_over(self._begin_anew)
        with self._lock:
            self._closed = True
            self._kept.clear()

    def _opened(self, shard: int, opening: Future[ShardReader] | None) -> ShardReader:
        assert opening is not None
        try:
            reader = self._open(shard)
        except BaseException as error:
            # Before those who wait are told: their next attempt must not find the failed opening.
            with self._lock:
                if self._kept.get(shard) is opening:
                    del self._kept[shard]
            opening.set_exception(error)
            opening = None
            raise
        with self._lock:
            self._in_use[shard] = reader
            if self._kept.get(shard) is opening:  # not if it was dropped or forgotten meanwhile
                self._kept[shard] = reader
        opening.set_result(reader)
        return reader

    def _limit(self) -> None:
        """Drops the least recently used shards if there are too many. Others may be using them."""
        most = _KEPT_SHARDS
        if self._memory is not None:
            sizes, nbytes = self._memory
            # Sums up the sizes from the most recently used shard on. As many shards as fit are
            # kept.
            latest = np.cumsum(sizes[list(reversed(self._kept))])
            most = min(most, max(1, int(np.searchsorted(latest, nbytes, "right"))))
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    def _begin_anew(self) -> None:
        # The threads of the openings are in the parent: a child would wait for them for ever.
        self._lock = threading.Lock()
        kept = [(n, each) for n, each in self._kept.items() if isinstance(each, ShardReader)]
        self._kept = OrderedDict(kept)


class Shards:
    """The shards in a folder, which are mapped. Thread-safe.

    Small columns are verified when a shard is opened, others in the background. Because files may
    be replaced or written to, they are checked for changes.

    Args:
        path: The folder.
        version: The version of the dataset; None for the newest.
        manifest: The manifest; None reads it from the folder.

    Attributes:
        path, manifest: The folder, and its manifest.
        readers: The open shards.
        whole: Whether an open shard has all of its bytes, or all except the images.
        store: The store of the shards; None for a folder.
        bytes_fetched: The number of bytes of heads that were fetched from the store.

    Raises:
        DatasetNotFound, ManifestInvalid, FormatUnsupported: As for `Manifest`.
    """

    whole = True
    store: Store | None = None
    bytes_fetched = 0

    def __init__(
        self, path: str, version: int | None = None, manifest: Manifest | None = None
    ) -> None:
        self.path = path
        self.manifest = manifest or Manifest(path, version=version)
        self.readers = OpenShards(path, self._open)
        self._comparisons = Comparisons(
            path, self.manifest.nbytes, self.manifest.fingerprint, len(self.manifest.shard_rows)
        )
        self._look_s, self._looks = 0.0, 0
        self._manifest_asked = self.manifest.checked

    def _open(self, shard: int) -> ShardReader:
        try:
            return self._opened(shard)
        except (ShardCorrupt, SourceNotFound):
            self.check_manifest()  # gives a better message if the dataset was replaced
            raise

    def _opened(self, shard: int) -> ShardReader:
        self.manifest.check_unchanged()
        # A manifest that is too large to be verified when it is opened is verified in the
        # background, with the first shard that is read.
        if not self._manifest_asked:
            self._manifest_asked = True
            self._comparisons.add(self.manifest.check)
        reader = open_shard(self.manifest, self._file(shard), shard)
        self._comparisons.add_shard(reader, shard)
        return reader

    def _file(self, shard: int) -> str:
        return os.path.join(self.path, self.manifest.name(shard))

    def image_bytes(
        self, reader: ShardReader, field: str, shard: int, begin: int, end: int, crc32c: int
    ) -> NDArray[np.uint8]:
        """Returns the stored bytes of an image, uint8 (n,): a view of the map.

        Args:
            reader, shard, field: The shard, its number, and the field of the image.
            begin, end: Where the image begins and ends in the bytes of the field.
            crc32c: The checksum of the image.
        """
        return reader.bytes_of(field)[begin:end]

    def renew(self, shards: Iterable[int]) -> bool:
        """Forgets those of the shards that are damaged.

        Returns:
            Whether opening them again may help: not here, but in a store they are fetched again.
        """
        self.readers.forget(shards)
        return False

    def source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of heads, a piece per shard; None without a cache."""
        return None

    def check(self, shard: int) -> str | None:
        """Reads a shard and compares it with the manifest. Returns what is wrong, or None."""
        entry, digest = self.manifest.entry(shard), xxhash.xxh3_64()
        try:
            found = self._size(shard)
            if found != entry.bytes:
                state = "truncated" if found < entry.bytes else "too long"
                return f"{state}: {found:,} of {entry.bytes:,} bytes"
            for piece in self._pieces(shard, found):
                digest.update(piece)
            if digest.hexdigest() != entry.xxh3:
                return f"its xxh3 is {digest.hexdigest()}, expected {entry.xxh3}"
            self._check_opened(shard)
        except FileNotFoundError:
            return "missing"
        except (FastioError, OSError) as error:
            return str(error)
        return None

    def _size(self, shard: int) -> int:
        return os.path.getsize(self._file(shard))

    def _pieces(self, shard: int, size: int) -> Iterator[Any]:
        """Yields the bytes of a shard."""
        return file_pieces(self._file(shard), [(0, size)], past_cache=False)

    def _check_opened(self, shard: int) -> None:
        self._open(shard)

    def check_manifest(self) -> None:
        """Raises SourceChanged if another dataset has replaced this one."""
        self.manifest.check_unchanged()

    def kept_versions(self) -> list[int]:
        """Returns the numbers of the versions that can be opened, up to this one."""
        return [
            each.version
            for each in self.manifest.history
            if os.path.exists(os.path.join(self.path, version_name(each.version)))
        ] + [self.manifest.version]

    def check_read(self, readers: Iterable[ShardReader]) -> None:
        """Raises ShardCorrupt or SourceChanged if values that were read may be wrong."""
        self._comparisons.raise_problem()
        for reader in readers:
            if reader.damaged:
                raise ShardCorrupt(
                    f"{reader.path} was cut off while it was read: it had {reader.nbytes} bytes "
                    "when it was opened"
                )
            if self.store is None:
                reader.check_unchanged()

    def check_unchanged(self) -> None:
        """Checks that the manifest and all open shards are those that were opened.

        Does nothing in a store, because all data that is fetched is compared with the manifest.

        Raises:
            SourceChanged: If one of them was replaced or written to.
            ShardCorrupt: If columns that were verified in the background are damaged.
        """
        self._comparisons.raise_problem()
        if self.store is not None:
            return
        self.manifest.check_unchanged()
        for reader in self.readers.all():
            reader.check_unchanged()

    def look(self) -> None:
        """Does what `check_unchanged` does for a few shards at a time, at most 4 times a second."""
        self._comparisons.raise_problem()
        now_s = time.monotonic()
        if now_s < self._look_s or self.store is not None:
            return
        self._look_s = now_s + _LOOK_S
        self.manifest.check_unchanged()
        readers = self.readers.all()
        for place in range(self._looks, self._looks + min(_LOOKS, len(readers))):
            readers[place % len(readers)].check_unchanged()
        self._looks += _LOOKS

    def finish_epoch(self) -> None:
        """Waits for verifications in the background, and checks all open files.

        Raises:
            SourceChanged, ShardCorrupt, ManifestInvalid: If rows that were read may be wrong.
        """
        self._comparisons.finish()
        self.check_unchanged()

    def close(self) -> None:
        """Drops all readers."""
        self.readers.close()
        self._comparisons.close()


def open_shard(
    manifest: Manifest,
    path: str | os.PathLike[str],
    shard: int,
    name: str | None = None,
    columns_first: bool = False,
) -> ShardReader:
    """Opens a file as the shard that the manifest describes; see `ShardReader`."""
    reader = ShardReader(
        path, name, manifest.schema, manifest.entry(shard), columns_first=columns_first
    )
    rows = int(manifest.shard_rows[shard])
    if reader.rows != rows:
        raise ShardCorrupt(
            f"{reader.path} has {reader.rows} rows, the manifest says {rows}; copy the dataset "
            "again, or pack again"
        )
    return reader
