"""What a path of tables means: a file, a folder of them, a pattern, or a list."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastio.errors import SchemaError, SourceNotFound
from fastio.formats.folder import IMG_EXTENSIONS

KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
}
_PATTERN = frozenset("*?[")


def table_kind(path: str | os.PathLike[str]) -> str | None:
    """ "parquet", "arrow", "csv" or "jsonl" by a file's name; None for other names."""
    name = os.path.basename(os.fspath(path)).lower()
    return next((kind for suffix, kind in KINDS.items() if name.endswith(suffix)), None)


def find_tables(path: Any) -> list[str] | None:
    """The table files that a path means.

    Args:
        path: a file; a folder with table files and no images, at any depth; a pattern such as
            "data/*.parquet"; or a list of files.

    Returns:
        Their paths, those of folders and patterns sorted; None where it means no tables.

    Raises:
        SourceNotFound: a file in a list does not exist, or a pattern of tables matches none.
        SchemaError: files of several kinds, or a folder that is partitioned by names like "day=1".
    """
    if isinstance(path, (str, os.PathLike)):
        found = _of_path(os.fspath(path))
    elif isinstance(path, (list, tuple)) and path:
        found = _of_list(path)
    else:
        return None
    if found is not None:
        _check_one_kind(found)
    return found


def _of_path(path: str) -> list[str] | None:
    if os.path.isdir(path):
        return _of_folder(path)
    if table_kind(path) is None:
        return None
    if os.path.exists(path):
        return [path]
    if not _PATTERN.intersection(path):
        return None
    matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    if not matches:
        raise SourceNotFound(f"{path} matches no file")
    return matches


def _of_list(paths: Iterable[Any]) -> list[str] | None:
    names = [os.fspath(p) if isinstance(p, (str, os.PathLike)) else None for p in paths]
    tables = [name for name in names if name is not None and table_kind(name) is not None]
    if len(tables) != len(names):
        return None
    for name in tables:
        if not os.path.isfile(name):
            raise SourceNotFound(f"{name} does not exist")
    return tables


def _of_folder(folder: str) -> list[str] | None:
    """Files in the order of their paths; None as soon as there is an image."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in names:
            if name.lower().endswith(IMG_EXTENSIONS):
                return None
            if table_kind(name) is not None and not name.startswith((".", "_")):
                found.append(os.path.join(parent, name))
    for name in found:
        parts = Path(os.path.relpath(name, folder)).parts[:-1]
        if any("=" in part for part in parts):
            raise SchemaError(
                f"{name} lies in a folder whose name is a value ({parts[-1]}): partitioned tables "
                "are not supported; write the column into the files, or name the files"
            )
    return sorted(found, key=lambda name: Path(name).parts) or None


def _check_one_kind(paths: list[str]) -> None:
    first_of: dict[str | None, str] = {}
    for path in paths:
        first_of.setdefault(table_kind(path), path)
    if len(first_of) > 1:
        raise SchemaError(
            f"tables of several kinds at once: {' and '.join(first_of.values())}; name those that "
            "are wanted, as in 'folder/*.parquet'"
        )
