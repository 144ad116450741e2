"""The folder that a pack writes to: what may be in it, and what is ours to delete."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastio.dataset import JOURNAL_NAME, MANIFEST_NAME, is_dataset
from fastio.errors import DatasetExists, FastioError, PackError
from fastio.pack.journal import check_not_in_use
from fastio.shard import TEMP_SUFFIX, sync_folder

_OWN_NAME = re.compile(
    rf"(?:shard-[0-9]{{6,}}\.arrow|{re.escape(MANIFEST_NAME)})(?:{re.escape(TEMP_SUFFIX)})?"
    rf"|{re.escape(JOURNAL_NAME)}"
)


def shard_name(number: int) -> str:
    """The file name of a dataset's shard."""
    return f"shard-{number:06d}.arrow"


def prepare(folder: Path, resume: bool, overwrite: bool) -> None:
    """Make the destination, or see to it that what is in it may be replaced or gone on with.

    Raises:
        DatasetExists: it holds a dataset, without `overwrite`.
        PackError: it holds a half-written dataset without `resume` or `overwrite`, or it is no
            folder.
        OSError: it cannot be made or changed.
    """
    if resume and overwrite:
        raise PackError("resume and overwrite exclude each other: choose one")
    if folder.exists() and not folder.is_dir():
        raise PackError(f"{folder} is a file, and no folder to pack to")
    folder.mkdir(parents=True, exist_ok=True)
    own = own_files(folder)
    has_journal = JOURNAL_NAME in own
    if overwrite:
        if has_journal:
            check_not_in_use(folder)
        _remove(folder, own)
        return
    if is_dataset(folder) and not (resume and has_journal):
        state = "a whole dataset, there is nothing to resume" if resume else "a dataset already"
        raise DatasetExists(
            f"{folder} holds {state}; choose another destination, or replace it with "
            "overwrite (--overwrite)"
        )
    if own and not has_journal:
        raise PackError(
            f"{folder} holds parts of a dataset ({', '.join(own[:3])}{', ...' * (len(own) > 3)}) "
            "but no journal to resume from; choose another destination, or replace them with "
            "overwrite (--overwrite)"
        )
    if has_journal and not resume:
        raise PackError(
            f"{folder} holds a half-written dataset; finish it with resume (--resume), or start "
            "again with overwrite (--overwrite)"
        )


def own_files(folder: Path) -> list[str]:
    """Names of the files in a folder that only a pack can have written, sorted."""
    return sorted(name for name in os.listdir(folder) if _OWN_NAME.fullmatch(name))


def remove_strays(folder: Path, kept: set[str]) -> None:
    """Delete our own files but those named: what a killed pack left under way."""
    for name in own_files(folder):
        if name not in kept:
            (folder / name).unlink()


@contextmanager
def writing_to(path: Path, when_full: str = "") -> Iterator[None]:
    """Errors of the file system as PackError, naming what could not be written.

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
            sync_folder(folder)
