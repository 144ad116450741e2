"""Keeps the indexes of JPEG files in a cache, so that a later process begins with them.

The files are local, or objects of a store that are samples or in tars.

An index says where parts of a JPEG begin (docs/format.md). The native engine makes indexes while it
decodes, and finds them by the size and the CRC-32C of the bytes that it has read: a file that was
changed is never decoded with the index of its old bytes.

All indexes of a dataset are pieces of one source of the cache (`fastio.cache.kept`). Each save adds
a piece with what is new. When there are many pieces, a save replaces all of them by one.

Engines use the indexes from the mapped files of the pieces, so that all ranks of a machine have
them in memory once. Indexes that are not stored yet are in the memory of the process that made
them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from fastio import _native
from fastio.cache import Cache, CacheFolder, Source, default_cache, is_cache, keep, kept_source
from fastio.errors import CacheError
from fastio.packed.rows import Rows
from fastio.runtime.threads import PATIENCE_S, DaemonPool
from fastio.store import absolute_path

_WHAT = "indexes of JPEGs"
_LEAST_BYTES = 64 << 10  # fewer are not worth a piece: those of about 7 MB of photos
_AT_ONCE_BYTES = 4 << 20  # at most this is loaded before the first batch, or else meanwhile
_MOST_PIECES = 8
_TRIES = 100  # piece numbers to try: other processes may claim the same ones
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


@dataclass
class _Engine:
    """A native engine, and the state of its indexes.

    Each engine has its own state, so that a job that still runs for an earlier engine does not
    change that of the next one.

    Attributes:
        native: The engine.
        known: The numbers of the pieces that were loaded or stored.
        left: New indexes that were too few to be stored as a piece.
        grows: Whether the last save found new indexes.
    """

    native: _native.Engine
    known: set[int] = field(default_factory=set)
    left: bytes = b""
    grows: bool = True


class KeptIndexes:
    """The indexes of a dataset's JPEG files, in a cache. Used by one thread at a time.

    Args:
        dataset: The dataset. Indexes are kept only if its images are files or objects.
        cache: The cache; None for the one in the user's cache folder.
    """

    def __init__(self, dataset: Rows, cache: Cache | None) -> None:
        self._wanted = dataset.recodes and bool(dataset.schema.image_fields)
        self._place = _place(dataset) if self._wanted else ("",)
        self._is_own = cache is None
        self._cache = cache or default_cache()
        self._engine: _Engine | None = None
        self._pool: DaemonPool | None = None

    def begin(self, native: _native.Engine) -> None:
        """Loads what is kept into an engine; does nothing for the engine of the last call."""
        if not self._wanted or (self._engine is not None and self._engine.native is native):
            return
        self._engine = engine = _Engine(native)
        # Loads a few indexes for the first batch. Loading more would delay it.
        self._load(engine, _AT_ONCE_BYTES)
        self._submit(partial(self._load, engine))

    def save(self) -> None:
        """Stores what is new, in a thread of its own. Errors are warnings."""
        if self._engine is not None:
            self._submit(partial(self._save, self._engine))

    def close(self) -> None:
        """Stores what is new, and waits up to PATIENCE_S for that. Idempotent."""
        self.save()
        self.end(PATIENCE_S)

    def end(self, timeout_s: float) -> None:
        """Waits for what is being stored, up to a timeout."""
        pool, self._engine, self._pool = self._pool, None, None
        if pool is not None:
            pool.shutdown(timeout_s=timeout_s)

    def _submit(self, job: Callable[[], None]) -> None:
        if self._pool is None:
            self._pool = DaemonPool(1, "fastio-indexes")
        self._pool.submit(job)

    def _use(self, job: Callable[[CacheFolder, Source], None]) -> None:
        """Opens the cache, registers the source and calls `job`. Errors are warnings.

        A folder that this user cannot write to causes no warning.
        """
        try:
            job(*kept_source(self._cache, _WHAT, *self._place))
        except (CacheError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if getattr(cause, "errno", None) not in _NOT_WRITABLE:
                self._cache.give_up(error)
        finally:
            if self._is_own:
                self._cache.close()

    def _load(self, engine: _Engine, most_bytes: int = sys.maxsize) -> None:
        """Loads the pieces that are not known, unless they exceed `most_bytes` in all."""
        if not is_cache(self._cache.path):
            return
        self._use(partial(self._load_pieces, engine, most_bytes))

    def _load_pieces(
        self, engine: _Engine, most_bytes: int, folder: CacheFolder, source: Source
    ) -> None:
        new = [number for number in folder.ready(source) if number not in engine.known]
        stamps = [folder.files.stamp(source.key, number) for number in new]
        if sum(stamp.size for stamp in stamps if stamp is not None) > most_bytes:
            return
        for number in new:
            if folder.has(source, number):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    engine.native.load_indexes(_native.Mapping(str(folder.file(source, number))))
            engine.known.add(number)
        if new:
            folder.note_use(source, new, 0)

    def _save(self, engine: _Engine) -> None:
        if engine.grows:
            self._load(engine)  # what other processes have stored is not stored again
        new = engine.native.unsaved_indexes()
        engine.grows = bool(new)
        engine.left += new
        if len(engine.left) < _LEAST_BYTES:
            return
        data, engine.left = engine.left, b""
        self._use(partial(self._store, engine, data))

    def _store(self, engine: _Engine, data: bytes, folder: CacheFolder, source: Source) -> None:
        ready, replaced = folder.ready(source), []
        if len(ready) >= _MOST_PIECES:
            # One piece replaces many, because each process maps every piece.
            data = engine.native.unsaved_indexes(all=True)
            replaced = [number for number in ready if number in engine.known]
        first = max(ready, default=-1) + 1
        for number in range(first, first + _TRIES):
            stored = keep(folder, source, number, data, unneeded=True)
            if stored is None:
                return
            if stored:
                engine.known.add(number)
                with suppress(FileNotFoundError):  # from the file: processes share its memory
                    engine.native.load_indexes(_native.Mapping(str(folder.file(source, number))))
                folder.drop(source, replaced)
                return


def _place(dataset: Rows) -> tuple[str, ...]:
    """Returns where a dataset lies, without secrets, and what else its indexes are found by."""
    remote = dataset.remote_part
    if remote is None:
        return (absolute_path(os.fspath(dataset.path)),)
    return remote.store.url, remote.lineage  # new versions begin with the indexes of the old ones
