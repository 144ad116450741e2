"""What a pack may not do, because of what its source or its destination is."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sized
from typing import Any

from fastio.errors import DatasetExists, OptionError, PackConflict, PackError
from fastio.pack.journal import APPEND_TO, differences
from fastio.pack.names import is_task_output_name
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Manifest
from fastio.schema import Schema
from fastio.sources import Options
from fastio.sources.registry import kind_of

# The options that only some sources have, and what these are.
_TABLES = "tables (Parquet, Arrow, CSV, JSONL)"
_HUB = "a dataset on the Hugging Face Hub, or a local folder with its layout"
_ONLY = {
    **dict.fromkeys(("columns", "groups", "dtypes", "nulls", "filters"), _TABLES),
    "roots": "a list of images or a save_to_disk directory",
    "max_unzipped_bytes": "a tar or a folder of .npz files",
    "split": _HUB,
    "config": _HUB,
}
TABLE_OPTIONS = frozenset(name for name, what in _ONLY.items() if what is _TABLES)


def check_source_options(
    src: Any, takes: Collection[str], data: Options, *, text: bool = False
) -> None:
    """Raises OptionError if an option was given that this source does not take.

    Args:
        src: The source as it was given.
        takes: The names of the options that it takes, of those that only some sources have.
        data: The options that were given.
        text: Whether the source is packed with a tokenizer.
    """
    for option, what in _ONLY.items():
        given = getattr(data, option)
        if given is None or (isinstance(given, Sized) and not len(given)) or option in takes:
            continue
        name = src if isinstance(src, (str, os.PathLike)) else type(src).__name__
        other = "is packed with a tokenizer" if text else "is not one"
        if kind_of(src) is not None:
            other = f"is open already: pass {option} to fastio.open instead"
        raise OptionError(f"{option} can only be used with {what}, and {name} {other}")


def check_image_options(source: str, schema: Schema, given: Mapping[str, Any]) -> None:
    """Raises OptionError if options of images are given for a source that has no images.

    Args:
        source, schema: The name and fields of the source.
        given: The options of images; None for those that were not given.
    """
    for option, value in given.items():
        if value is not None and not schema.pictured:
            raise OptionError(
                f"{option} can only be used with images, and {source} has only the fields "
                f"{', '.join(schema.fields)}"
            )


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
