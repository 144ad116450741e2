"""fastio.gc: deletes what no kept version of a dataset needs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastio.errors import OptionError
from fastio.pack.destination import Destination, own_files
from fastio.pack.journal import no_packing, writing_to
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Manifest, version_name
from fastio.runtime.files import flush_folder
from fastio.store import is_remote


@dataclass(frozen=True)
class GcReport:
    """The result of `gc`.

    Attributes:
        versions: numbers of the versions that were deleted.
        files, bytes: number and size of the deleted files.
        unfinished: whether an unfinished append was found and left alone, with files that may
            belong to it.
    """

    versions: list[int]
    files: int
    bytes: int
    unfinished: bool = False


def gc(
    path: str | os.PathLike[str], *, keep: int | None = None, unfinished: bool = False
) -> GcReport:
    """Deletes files of a packed dataset that no kept version needs.

    These are old versions, and what a pack, an append or an overwrite that was killed left behind.
    Loaders that have a deleted version open go on: later versions have its shards too.

    Args:
        path: The folder of a packed dataset.
        keep: Number of versions to keep, the newest ones (default: all).
        unfinished: Whether to discard an append that was interrupted, which cannot be resumed
            then. Without it, the append and all files that it may have written stay.

    Raises:
        DatasetNotFound: There is no dataset.
        ManifestInvalid: A manifest is damaged: then nothing is deleted.
        PackConflict: Another process is packing to the folder.
        PackError: A file cannot be deleted.
        OptionError: `path` is a URL, or `keep` is less than 1.
    """
    if is_remote(path):
        raise OptionError(f"gc can only be used with a local folder, and {path} is a URL")
    if keep is not None and keep < 1:
        raise OptionError(f"keep must be at least 1, got {keep}")
    folder = Path(path)
    Destination(folder).settle(Manifest(folder))
    with writing_to(folder), no_packing(folder, unfinished) as found:
        left = found and not unfinished
        newest = Manifest(folder)
        dropped, kept = [], [newest]
        for older in newest.history:
            if (folder / version_name(older.version)).exists():
                if keep is not None and older.version <= newest.version - keep:
                    dropped.append(older.version)
                else:
                    kept.append(Manifest(folder, version=older.version))
        wanted = {JOURNAL_NAME, MANIFEST_NAME, *(version_name(each.version) for each in kept)}
        if left:
            unneeded = [version_name(version) for version in dropped]
        else:
            for each in kept:
                wanted.update(each.column("name").to_pylist())
            unneeded = [name for name in own_files(folder) if name not in wanted]
        nbytes = _delete(folder, unneeded)
        return GcReport(dropped, len(unneeded), nbytes, left)


def _delete(folder: Path, names: Iterable[str]) -> int:
    """Deletes files, manifests first, and returns their size in bytes."""
    nbytes = 0
    for name in sorted(names):  # "manifest-..." before "shard-..."
        nbytes += (folder / name).lstat().st_size
        (folder / name).unlink()
    flush_folder(folder)
    return nbytes
