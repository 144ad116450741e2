"""fastio.gc: deletes old versions of a dataset, and files that no version needs."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fastio.errors import DatasetNotFound, FormatUnsupported, ManifestInvalid, OptionError
from fastio.pack.destination import shards_of
from fastio.pack.journal import writing_to
from fastio.pack.remote import open_destination
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, version_name
from fastio.packed.stored import newest_manifest
from fastio.runtime.texts import Names
from fastio.store import absolute_path


@dataclass(frozen=True)
class GcReport:
    """The result of `gc`.

    Attributes:
        versions: numbers of the versions that were deleted.
        files, bytes: number and total size in bytes of the deleted files.
        unfinished: whether there is an unfinished append or overwrite, whose files were kept.
    """

    versions: list[int]
    files: int
    bytes: int
    unfinished: bool = False


def gc(
    path: str | os.PathLike[str],
    *,
    keep: int | None = None,
    unfinished: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> GcReport:
    """Deletes files of a packed dataset that no kept version needs.

    These are the manifests of old versions, and files that a killed pack, append or overwrite has
    left. Loaders that have a deleted version open can continue, because later versions contain its
    shards.

    Args:
        path: The folder of a packed dataset, or its URL.
        keep: Number of versions to keep, the newest ones (default: all).
        unfinished: Also discard an interrupted append or overwrite, which then cannot be resumed.
            By default, all files that it may have written are kept. At a URL, first make sure that
            no process is packing there, because its pack would fail.
        storage_options: Options of the file system of a URL, such as keys and endpoint.

    Raises:
        DatasetNotFound: There is no dataset.
        ManifestInvalid: The newest manifest is damaged. Nothing is deleted. `unfinished` discards
            an interrupted overwrite of such a dataset all the same.
        PackConflict: Another process is packing to the folder.
        PackError: A file cannot be deleted.
        StoreError: The store of a URL does not answer.
        OptionError: `keep` is not an integer of at least 1.
    """
    if keep is not None and (not isinstance(keep, int) or keep < 1):
        raise OptionError(f"keep must be at least 1 and an integer, got {keep!r}")

    path = absolute_path(path)
    try:
        newest = newest_manifest(path, storage_options)
    except (DatasetNotFound, FormatUnsupported, ManifestInvalid):
        if not unfinished:
            raise
        destination = open_destination(path, storage_options, None)
        with writing_to(destination.name):
            sizes = destination.discard_beside_damage()
        if sizes is None:
            raise
        return GcReport([], len(sizes), sum(sizes))
    destination = open_destination(path, storage_options, None)
    with writing_to(destination.name):
        destination.remove_ended_pack(newest)
        with destination.exclusive_access(unfinished) as (found, files):
            left = found and not unfinished
            # Opened after the listing, which therefore has all of its shards.
            newest = newest_manifest(path, storage_options)
            last_dropped = newest.version - keep if keep is not None else 0
            older = {each.version: version_name(each.version) for each in newest.history}
            dropped = [n for n, name in older.items() if n <= last_dropped and name in files]
            unneeded: Collection[str] = [older[version] for version in dropped]
            if not left:
                kept = (name for name in older.values() if name not in unneeded)
                # The newest version names the shards of all versions.
                needed = Names(chain((JOURNAL_NAME, MANIFEST_NAME), kept, shards_of(newest)))
                unneeded = needed.compared(files)[1]
            nbytes = sum(files[name] for name in unneeded)
            # If other files than manifests of old versions are deleted, they may be shards of a
            # suspended process.
            if len(unneeded) > len(dropped):
                destination.fence(newest)
            destination.delete(unneeded)
    return GcReport(dropped, len(unneeded), nbytes, left)
