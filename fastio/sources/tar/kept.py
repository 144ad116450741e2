"""Keeps indexes of tars in a cache, each as one piece.

An index thus counts against the cache's budget, is listed by `fastio cache status` and deleted by
`clear`, is compared with its hash before use, and lies in a folder that only its user can write to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import xxhash

from fastio.cache import Cache, CacheFolder, Source
from fastio.errors import CacheError, FastioError
from fastio.packed.ipc import MappedFile
from fastio.sources.tar.index import TarIndex
from fastio.sources.tar.stored import BrokenIndex, check_rows, checked_columns

_PIECE = 0  # an index is one


def default_cache() -> Cache:
    """Returns the cache that is used by default: one in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Cache(Path(base, "fastio", "indexes"))


def open_index(
    url: str,
    tars: Sequence[tuple[str, str, int]],
    cache: Cache,
    build: Callable[[], TarIndex],
) -> TarIndex:
    """Returns the index of tars from a cache; builds and stores it if it is not there.

    Args:
        url: of the tars' folder.
        tars: name, stamp and size in bytes of each; an index that was made of others is not used,
            and replaced.
        cache: where it is kept; where it cannot be used, or has no room, the index is not.
        build: makes the index.

    Raises:
        Exception: Whatever `build` raises.
    """
    try:
        folder, source = index_source(url, (name for name, _, _ in tars), cache)
        index = _read(folder, source)
        if index is not None and _is_of(index, tars):
            folder.note_use(source, [_PIECE], 0)
            return index
    except CacheError as error:
        if error.__cause__ is None:  # the folder was refused; no warning if it is only read-only
            cache.give_up(error)
        return build()
    index = build()
    with suppress(OSError):
        _keep(folder, source, index)
    return index


def _is_of(index: TarIndex, tars: Sequence[tuple[str, str, int]]) -> bool:
    return [(tar.name, tar.stamp, tar.nbytes) for tar in index.tars] == list(tars)


def index_source(url: str, names: Iterable[str], cache: Cache) -> tuple[CacheFolder, Source]:
    """Returns the cache folder, and the source whose only piece is the index of some tars.

    Raises:
        CacheError: If the cache cannot be used.
    """
    digest = xxhash.xxh3_64()
    for part in (url, *names):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    told = url.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    folder = cache.folder()
    return folder, folder.source(told, digest.hexdigest(), 0, 0, 0)


def _read(folder: CacheFolder, source: Source) -> TarIndex | None:
    """Maps the cached index; returns None if there is none or it is unusable.

    Raises:
        CacheError: If the cache cannot be used.
    """
    if not folder.has(source, _PIECE):
        return None
    try:
        return read_index(folder.path_of(source, _PIECE))
    except FastioError:
        return None  # broken, or of another version, or deleted meanwhile: it is made anew


def read_index(path: str) -> TarIndex:
    """The index in a file, mapped, of which nothing is believed.

    Raises:
        CacheError: it is broken, or of another version of fastio.
        SourceNotFound: there is no such file.
        SourceChanged: it was replaced meanwhile.
    """
    mapped = MappedFile(path, CacheError, advice="delete it, and it is made anew from the tars")
    try:
        batch, _, _ = mapped.batch(checked_columns(mapped.schema()))
        index = TarIndex(batch)
        check_rows(index)
    except BrokenIndex as cause:
        raise mapped.wrong(str(cause)) from cause
    return index


def index_bytes(index: TarIndex) -> pa.Buffer:
    """Returns the index in the form that `read_index` reads."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, index.batch.schema) as writer:
        writer.write_batch(index.batch)
    return sink.getvalue()


def _keep(folder: CacheFolder, source: Source, index: TarIndex) -> None:
    """Stores an index in the cache, if there is space and no other process is storing it.

    Raises:
        CacheError, OSError: If it cannot be written.
    """
    data = index_bytes(index)
    folder.drop(source, [_PIECE])
    if folder.claim(source, {_PIECE: data.size}) != {_PIECE: "mine"}:
        return
    stored = False
    try:
        stored = folder.store(source, _PIECE, [data], misses=False)
    finally:
        if not stored:
            folder.abandon(source, [_PIECE])
