"""Destinations of packs: a folder, or a store that shards are uploaded to from one (`upload`).

This module knows which files may be there already, and which belong to a pack and can be deleted.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fastio.errors import DatasetExists, FastioError, PackError
from fastio.pack.journal import FinishedShard, Journal, check_not_in_use
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, ShardEntry
from fastio.runtime.files import TEMPORARY_ENDING, flush_folder

_OWN_NAME = re.compile(
    rf"(?:shard-[0-9]{{6,}}\.arrow|{re.escape(MANIFEST_NAME)})(?:{TEMPORARY_ENDING})?"
    rf"|{re.escape(JOURNAL_NAME)}"
)
_EXCLUDE = "resume and overwrite exclude each other: choose one"


def shard_name(number: int) -> str:
    """Returns the file name of a shard."""
    return f"shard-{number:06d}.arrow"


class Destination(Protocol):
    """Where a dataset is packed to. Used by one thread.

    Attributes:
        name: path or URL, for messages.
        folder: where the packer writes shards and the manifest.
    """

    name: str
    folder: Path

    def open(self, options: Mapping[str, Any], resume: bool, overwrite: bool) -> Journal:
        """Sees to it that what is there may be replaced or gone on with; called once, first.

        Args:
            options: JSON values that the dataset's bytes depend on.

        Returns:
            The journal, with what is finished.

        Raises:
            DatasetExists, PackError: as `check_may_pack`; the journal is one of other options.
            OSError: it cannot be made or changed.
        """

    def check(self, entry: ShardEntry) -> None:
        """Sees to it that a shard that the journal calls finished is there.

        Raises:
            PackError: it is not.
        """

    def add(self, shard: FinishedShard) -> None:
        """Takes a shard that was written to the folder."""

    def keep_only(self, names: Iterable[str]) -> None:
        """Deletes our files but those named; what was added is there for good then."""

    def finish(self) -> None:
        """Takes the manifest that was written to the folder: from here on it is a dataset."""

    def discard(self) -> None:
        """Deletes all that was written."""

    def close(self, keep: bool) -> None:
        """Lets go of it; keep: something is finished, to be resumed. Idempotent."""


class LocalDestination:
    """A folder on this machine; see `Destination`."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder

    def open(self, options: Mapping[str, Any], resume: bool, overwrite: bool) -> Journal:
        """See `Destination`."""
        prepare(self.folder, resume, overwrite)
        self._journal = Journal(self.folder, options, resume)
        return self._journal

    def check(self, entry: ShardEntry) -> None:
        """See `Destination`."""
        path = self.folder / entry.name
        found = path.stat().st_size if path.is_file() else None
        if found != entry.nbytes:
            state = "is missing" if found is None else f"has {found} bytes"
            raise PackError(
                f"cannot resume: {path} {state}, expected {entry.nbytes} bytes; start again with "
                "overwrite"
            )

    def add(self, shard: FinishedShard) -> None:
        """See `Destination`."""
        self._journal.append(shard)

    def keep_only(self, names: Iterable[str]) -> None:
        """See `Destination`."""
        remove_strays(self.folder, set(names))

    def finish(self) -> None:
        """See `Destination`."""
        self._journal.remove()

    def discard(self) -> None:
        """See `Destination`."""
        remove_strays(self.folder, {JOURNAL_NAME})
        self._journal.remove()

    def close(self, keep: bool) -> None:
        """See `Destination`."""
        if not keep:
            self._journal.remove()
        self._journal.close()


def prepare(folder: Path, resume: bool, overwrite: bool) -> None:
    """Creates the destination, or checks that what is in it may be replaced or resumed.

    Raises:
        DatasetExists, PackError: as `check_may_pack`, or it is no folder.
        OSError: it cannot be made or changed.
    """
    if resume and overwrite:
        raise PackError(_EXCLUDE)
    if folder.exists() and not folder.is_dir():
        raise PackError(f"{folder} is a file, and no folder to pack to")
    folder.mkdir(parents=True, exist_ok=True)
    own = own_files(folder)
    if overwrite:
        if JOURNAL_NAME in own:
            check_not_in_use(folder)
        _remove(folder, own)
    check_may_pack(str(folder), own, resume, overwrite)


def check_may_pack(name: str, own: Collection[str], resume: bool, overwrite: bool) -> None:
    """Checks that what a destination holds may be replaced or resumed.

    Args:
        name: of the destination, for messages.
        own: names of the files in it that only a pack can have written.

    Raises:
        DatasetExists: it holds a dataset, without `overwrite`.
        PackError: it holds a half-written dataset without `resume` or `overwrite`.
    """
    if resume and overwrite:
        raise PackError(_EXCLUDE)
    if overwrite:
        return
    has_journal = JOURNAL_NAME in own
    if MANIFEST_NAME in own and not (resume and has_journal):
        state = "a whole dataset, there is nothing to resume" if resume else "a dataset already"
        raise DatasetExists(
            f"{name} holds {state}; choose another destination, or replace it with overwrite "
            "(--overwrite)"
        )
    if own and not has_journal:
        some = sorted(own)[:3]
        raise PackError(
            f"{name} holds parts of a dataset ({', '.join(some)}{', ...' * (len(own) > 3)}) but no "
            "journal to resume from; choose another destination, or replace them with overwrite "
            "(--overwrite)"
        )
    if has_journal and not resume:
        raise PackError(
            f"{name} holds a half-written dataset; finish it with resume (--resume), or start "
            "again with overwrite (--overwrite)"
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


@contextmanager
def writing_to(path: Path | str, when_full: str = "") -> Iterator[None]:
    """Raises errors of the file system as PackError with the name of what could not be written.

    Args:
        path: what is written, for errors that do not say.
        when_full: what to do after making room on a full disk.
    """
    try:
        yield
    except FastioError:
        raise  # some of them are OSErrors too
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = f"; make room{when_full}" if is_full else ""
        raise PackError(
            f"cannot write {error.filename or path}: {error.strerror}{advice}"
        ) from error


def _remove(folder: Path, names: list[str]) -> None:
    # The manifest goes first: without it, what is left is no dataset.
    for name in sorted(names, key=lambda name: name != MANIFEST_NAME):
        (folder / name).unlink()
        if name == MANIFEST_NAME:
            flush_folder(folder)
