"""Checks, before a pack begins, that it does not overwrite or contain its own source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastio.errors import PackError
from fastio.sources.inside import datasets_inside
from fastio.store import is_remote
from fastio.store.options import family_of


def check_apart(src: Any, dst: str | os.PathLike[str], overwrite: bool) -> None:
    """Checks that the destination is not inside the source, and that overwriting keeps the source.

    Raises:
        PackError: The destination is inside the source; or overwriting it would delete a packed
            dataset that the source reads.
    """
    if not is_remote(dst):
        _check_folders(src, dst)
    if not overwrite:
        return
    place = _place(dst)
    for dataset in datasets_inside(src):
        packed = dataset.packed
        if packed is not None and _place(packed.path) == place:
            raise PackError(
                f"the source reads the dataset {packed.path}, and overwrite (--overwrite) would "
                "delete it: choose another destination"
            )


def _check_folders(src: Any, dst: str | os.PathLike[str]) -> None:
    destination = _resolved(dst)
    is_path = isinstance(src, (str, os.PathLike))
    # A list may contain documents instead of paths: only existing folders are compared.
    folders = filter(_is_folder, src) if isinstance(src, (list, tuple)) else ()
    for path in [src] if is_path else folders:
        source = _resolved(path)
        if source == destination or source in destination.parents:
            raise PackError(
                f"the destination {os.fspath(dst)} is inside the source {os.fspath(path)} and "
                "would become part of it: choose another folder"
            )


def _place(path: str | os.PathLike[str]) -> str:
    """Returns a string that is equal for all spellings of the path or URL of one folder."""
    if not is_remote(path):
        return os.path.realpath(path)
    scheme, mark, rest = str(path).partition("://")
    names = [name for name in rest.split("/") if name]  # stores ignore empty names
    return (family_of(scheme.lower()) or scheme.lower()) + mark + "/".join(names)


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Returns an absolute path with symbolic links resolved."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise PackError(f"{os.fspath(path)} cannot be a path: {error}") from error


def _is_folder(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike)) and os.path.isdir(item)
