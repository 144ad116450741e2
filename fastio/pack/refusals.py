"""What a pack may not do at a destination, because of what or where it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastio.errors import DatasetExists, OptionError, PackConflict, PackError
from fastio.pack.journal import APPEND_TO, differences
from fastio.pack.names import is_task_output_name
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Manifest


def not_for_paths(dst: str | os.PathLike[str]) -> OptionError:
    """Returns the error for options of URLs at a local destination."""
    return OptionError(
        "storage_options and staging can only be used with a URL as the destination, and "
        f"{os.fspath(dst)} is a local path"
    )


def check_may_pack(name: str, own: Mapping[str, int], resume: bool) -> None:
    """Checks that a destination may be packed to without overwriting, given its own files.

    Raises:
        DatasetExists: It holds a dataset.
        PackError: It holds a half-written dataset, which is not to be resumed.
    """
    has_journal = JOURNAL_NAME in own
    if MANIFEST_NAME in own and not (resume and own.get(JOURNAL_NAME)):
        raise DatasetExists(
            f"{name} contains a dataset already; choose another destination, add to it with append "
            "(--append), or replace it with overwrite (--overwrite)"
        )
    parts = () if has_journal else sorted(each for each in own if not is_task_output_name(each))
    if parts:
        some = ", ".join(parts[:3]) + ", ..." * (len(parts) > 3)
        raise PackError(
            f"{name} contains parts of a dataset ({some}) but no journal to resume from; choose "
            "another destination, or replace them with overwrite (--overwrite)"
        )
    if has_journal and not resume:
        raise PackError(
            f"{name} contains an incomplete dataset; finish it with resume (--resume), or "
            "start again with overwrite (--overwrite)"
        )


def check_may_append(name: str, own: Mapping[str, int], resume: bool, base: Manifest) -> None:
    """Raises PackError if an append is to be resumed, but none is unfinished."""
    if resume and not own.get(JOURNAL_NAME):  # a killed gc leaves an empty one
        last = base.as_version()
        raise PackError(
            f"{name} contains no unfinished append to resume: its newest version, {last.version}, "
            f"was packed from {last.source}; leave out resume (--resume) to append"
        )


def check_repeated(
    name: str, base: Manifest, options: Mapping[str, Any], identity: Mapping[str, Any] | None
) -> None:
    """Raises PackError unless an append with these options, which wrote `base`, is resumed."""
    last = base.as_version()
    done = (
        f"the last append to {name} is complete, although its process was interrupted: version "
        f"{last.version} was packed from {last.source}"
    )
    if identity is None:
        raise PackError(f"{done}. To append more samples, first run `fastio gc`")
    different = differences(options, identity, {*options, *identity} - {APPEND_TO})
    if different:
        raise PackError(
            f"{done}. There is nothing to resume with another source or other options: {different}."
            " To append with them, first run `fastio gc`, and leave out resume (--resume)"
        )


def changed_meanwhile(name: str) -> PackConflict:
    """Returns the error of an append to a dataset that has changed since it was opened."""
    return PackConflict(f"another process has changed {name} since this append began: append again")


def taken_over(name: str) -> PackConflict:
    """Returns the error of a process whose journal another one has replaced or deleted."""
    return PackConflict(
        f"another process has taken over {name} with resume (--resume), overwrite (--overwrite) or "
        "`fastio gc --unfinished`; this process has stopped, and leaves the files there as they "
        "are. Wait until the other process ends: only one can write to a destination at a time"
    )
