"""Finds the files of text that a source means."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from fastio.errors import PackError, SourceNotFound
from fastio.packed import is_dataset
from fastio.runtime.files import check_file, unless_gone
from fastio.shown import without_secrets
from fastio.sources.table.names import table_kind
from fastio.store import is_remote, local_path

_PLAIN = (".txt", ".txt.gz", ".txt.zst")
_JSON = (".jsonl.zst", ".ndjson.zst")
_PATTERN = frozenset("*?[")


def text_kind(path: str | os.PathLike[str]) -> str | None:
    """Returns "text", "jsonl" or another kind of table, by the name of a file; else None."""
    name = os.path.basename(os.fspath(path)).lower()
    if name.endswith(_PLAIN):
        return "text"
    return "jsonl" if name.endswith(_JSON) else table_kind(name)


def find_texts(src: Any) -> list[str] | None:
    """Returns the files of text that a source means, sorted; None if it is not a path.

    Args:
        src: A file; a folder with such files at any depth; a pattern such as "data/*.jsonl"; or a
            list of any of these.

    Raises:
        SourceNotFound: A path does not exist, or has no text.
        PackError: A list has paths and other strings, or a dataset is packed already.
    """
    if isinstance(src, (str, os.PathLike)):
        return _of_path(os.fspath(src))
    if not isinstance(src, (list, tuple)) or not src:
        return None
    are_paths = [_is_path(item) for item in src]
    if not any(are_paths):
        return None
    if not all(are_paths):
        other = src[are_paths.index(False)]
        raise PackError(
            f"{src[are_paths.index(True)]} is a path, and {str(other)[:80]!r} is not the path "
            "of an existing text file: give only paths, or only documents"
        )
    return [path for item in src for path in _of_path(os.fspath(local_path(item)))]


def _is_path(item: Any) -> bool:
    if isinstance(item, os.PathLike):
        return True
    if not isinstance(item, str) or "\n" in item or "\0" in item:
        return False
    return text_kind(item) is not None or os.path.isdir(local_path(item))


def _of_path(path: str) -> list[str]:
    if os.path.isdir(path):
        return _of_folder(path)
    if os.path.exists(path):
        if text_kind(path) is None:
            raise SourceNotFound(
                f"{path} is not a text file: .txt, .jsonl, .ndjson, .parquet, .arrow, .feather and "
                ".csv are"
            )
        return [_checked(path)]
    if not _PATTERN.intersection(path):
        if is_remote(path):
            raise SourceNotFound(
                f"{without_secrets(path)} is behind a URL, and text that is packed with a "
                "tokenizer must be local: copy it to this machine"
            )
        raise SourceNotFound(f"{path} does not exist")
    matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    found = [name for name in matches if text_kind(name) is not None]
    if not found:
        raise SourceNotFound(f"{path} matches no text file")
    return found


def _checked(path: str) -> str:
    """Returns a path after checking that it is a file: opening a pipe would block."""
    try:
        check_file(path)
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error
    return path


def _of_folder(folder: str) -> list[str]:
    if is_dataset(folder):
        raise PackError(f"{folder} is already packed")
    found: list[str] = []
    try:
        for parent, folders, names in os.walk(folder, onerror=unless_gone):
            # Names that begin with "." or "_" are hidden, or were written beside the data by Spark
            # or Hive (_SUCCESS).
            folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
            for name in names:
                if text_kind(name) is not None and not name.startswith((".", "_")):
                    found.append(_checked(os.path.join(parent, name)))
    except PermissionError as error:
        raise SourceNotFound(f"{error.filename} cannot be read: {error.strerror}") from error
    if not found:
        raise SourceNotFound(f"{folder} has no text files (.txt, .jsonl, .parquet, .csv, ...)")
    return sorted(found, key=lambda name: Path(name).parts)
