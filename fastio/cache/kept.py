"""Stores indexes and listings in a cache, beside the blocks of datasets, in pieces of their own.

These pieces count against the budget. Their hashes are verified before use, and the commands of the
cache list and delete them. Their contents can be made again. It is therefore no error if a cache
has no room, or if another process stores the same piece at the same time.
"""

from __future__ import annotations

import xxhash

from fastio.cache.folder import CacheFolder, Source
from fastio.cache.spec import Cache


def kept_source(cache: Cache, what: str, url: str, *key: str) -> tuple[CacheFolder, Source]:
    """Returns the cache folder, and the source whose pieces are kept for a URL.

    Args:
        cache: The cache.
        what: The kind of data, such as "listing". Each kind has a source of its own.
        url: The path or URL that the data belongs to, which the commands of the cache show.
        key: What else the data depends on. Another key gives another source.

    Raises:
        CacheError: The cache cannot be used.
    """
    digest = xxhash.xxh3_128()
    for part in (what, url, *key):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    shown = url.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    folder = cache.folder()
    return folder, folder.source(shown, digest.hexdigest(), 0, 0, 0)


def keep(
    folder: CacheFolder,
    source: Source,
    number: int,
    data: bytes | memoryview,
    *,
    unneeded: bool = False,
) -> bool | None:
    """Stores a piece.

    Args:
        folder, source: Where it is kept.
        number: The number of the piece.
        data: Its bytes.
        unneeded: Whether to evict only pieces that no run is known to need.

    Returns:
        Whether it was stored. False if there is or will be another piece with this number, and None
        if there is no room.

    Raises:
        CacheError, OSError: The cache cannot be used, or the file cannot be written.
    """
    outcome = folder.claim(source, {number: len(data)}, unneeded=unneeded)[number]
    if outcome != "mine":
        return None if outcome == "no room" else False
    stored = False
    try:
        # Nobody waited for these bytes: they are no miss of the cache.
        stored = folder.store(source, number, [data], misses=False)
    finally:
        if not stored:  # a claim that is kept would make other processes wait for this one
            folder.abandon(source, [number])
    return stored
