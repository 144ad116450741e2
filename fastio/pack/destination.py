"""The folder that a dataset is packed to; `upload` has the one that is sent to a store.

This module knows which files may be there already, and which belong to a pack and can be deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fastio.errors import DatasetExists, PackError
from fastio.pack.journal import FinishedShard, Journal, check_not_in_use
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, ShardEntry
from fastio.runtime.files import TEMPORARY_ENDING, flush_folder

_OWN_NAME = re.compile(
    rf"(?:shard-[0-9]{{6,}}\.arrow|{re.escape(MANIFEST_NAME)})(?:{TEMPORARY_ENDING})?"
    rf"|{re.escape(JOURNAL_NAME)}"
)
_EXCLUDE = "resume and overwrite cannot be combined: choose one"


def shard_name(number: int) -> str:
    """Returns the file name of a shard."""
    return f"shard-{number:06d}.arrow"


class Destination:
    """A folder that a dataset is packed to. Used by one thread.

    Attributes:
        name: The path or URL, for messages.
        folder: The folder in which the packer writes shards and the manifest.
    """

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder

    def open(self, options: Mapping[str, Any], resume: bool, overwrite: bool) -> Journal:
        """Prepares the destination, and returns the journal of what is finished. Called first.

        Raises:
            DatasetExists, PackError: As for `check_may_pack`, or the journal has other options.
            OSError: It cannot be created or changed.
        """
        folder = self.folder
        if resume and overwrite:
            raise PackError(_EXCLUDE)
        if folder.exists() and not folder.is_dir():
            raise PackError(f"{folder} is a file: give a folder to pack to")
        folder.mkdir(parents=True, exist_ok=True)
        own = own_files(folder)
        if overwrite:
            if JOURNAL_NAME in own:
                check_not_in_use(folder)
            _remove(folder, own)
        check_may_pack(self.name, own, resume, overwrite)
        self._journal = Journal(folder, options, resume)
        return self._journal

    def check(self, entry: ShardEntry) -> None:
        """Raises PackError unless a shard that the journal calls finished is there."""
        path = self.folder / entry.name
        found = path.stat().st_size if path.is_file() else None
        if found != entry.bytes:
            state = "is missing" if found is None else f"has {found} bytes"
            raise PackError(
                f"cannot resume: {path} {state}, expected {entry.bytes} bytes; start again with "
                "overwrite"
            )

    def add(self, shard: FinishedShard) -> None:
        """Takes a shard that was written to the folder."""
        self._journal.append(shard)

    def keep_only(self, names: Iterable[str]) -> None:
        """Deletes the pack's own files except those named, after all uploads."""
        remove_strays(self.folder, set(names))

    def finish(self) -> None:
        """Takes the manifest that was written to the folder, which completes the dataset."""
        self._journal.remove()

    def discard(self) -> None:
        """Deletes everything that was written."""
        remove_strays(self.folder, {JOURNAL_NAME})
        self._journal.remove()

    def close(self, keep: bool) -> None:
        """Closes it. If `keep`, something is finished and can be resumed. Idempotent."""
        if not keep:
            self._journal.remove()
        self._journal.close()


def check_may_pack(name: str, own: Collection[str], resume: bool, overwrite: bool) -> None:
    """Checks that a destination may be replaced or resumed, given the names of its own files.

    Raises:
        DatasetExists: It holds a dataset, without `overwrite`.
        PackError: It holds a half-written dataset without `resume` or `overwrite`.
    """
    if resume and overwrite:
        raise PackError(_EXCLUDE)
    if overwrite:
        return
    has_journal = JOURNAL_NAME in own
    if MANIFEST_NAME in own and not (resume and has_journal):
        state = "a complete dataset; there is nothing to resume" if resume else "a dataset already"
        raise DatasetExists(
            f"{name} contains {state}; choose another destination, or replace it with "
            "overwrite (--overwrite)"
        )
    if own and not has_journal:
        some = sorted(own)[:3]
        raise PackError(
            f"{name} contains parts of a dataset ({', '.join(some)}{', ...' * (len(own) > 3)}) "
            "but no journal to resume from; choose another destination, or replace them with "
            "overwrite (--overwrite)"
        )
    if has_journal and not resume:
        raise PackError(
            f"{name} contains an incomplete dataset; finish it with resume (--resume), or "
            "start again with overwrite (--overwrite)"
        )


def is_own(name: str) -> bool:
    """Returns whether only a pack can have written a file of this name."""
    return _OWN_NAME.fullmatch(name) is not None


def own_files(folder: Path) -> list[str]:
    """Returns the names of the files in a folder that only a pack can have written, sorted."""
    return sorted(name for name in os.listdir(folder) if is_own(name))


def remove_strays(folder: Path, kept: set[str]) -> None:
    """Deletes our own files except those named: what a killed pack has left unfinished."""
    for name in own_files(folder):
        if name not in kept:
            (folder / name).unlink()


def _remove(folder: Path, names: list[str]) -> None:
    # The manifest goes first: without it, what is left is no dataset.
    for name in sorted(names, key=lambda name: name != MANIFEST_NAME):
        (folder / name).unlink()
        if name == MANIFEST_NAME:
            flush_folder(folder)
