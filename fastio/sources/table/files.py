"""What a path of tables means: a file, a folder of them, a pattern, or a list; here or by URL."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastio.errors import SchemaError, SourceNotFound
from fastio.runtime.files import check_file, unless_gone
from fastio.shown import without_secrets
from fastio.sources.folder import AUDIO_EXTENSIONS, IMG_EXTENSIONS
from fastio.sources.listed import ListedFiles
from fastio.sources.table.lance import LanceFolder, LanceUrl, is_lance
from fastio.sources.table.names import table_kind
from fastio.sources.table.objects import LocalFile, StoreFile, TableFile
from fastio.store import Stamp, Store, is_remote, join, open_store, split

_PATTERN = frozenset("*?[")
# Files of samples, beside which a table is one about them.
_OF_SAMPLES = (*IMG_EXTENSIONS, *AUDIO_EXTENSIONS)
# Files of a folder that is no folder of tables: a packed dataset, finished or not.
_OF_DATASETS = frozenset({"manifest.arrow", "pack.journal"})


def find_tables(
    path: Any, storage_options: Mapping[str, Any] | None = None
) -> list[TableFile] | None:
    """Returns the table files that a path means; None if it means no tables.

    Args:
        path: a file; a folder with table files, at any depth, and no images or sound files; a
            pattern such as "data/*.parquet"; or a list of files. Each on this machine or a URL;
            folders and patterns of URLs only where the store lists what it has.
        storage_options: for URLs.

    Files of folders and patterns are sorted. Their `values` are those in the names of folders
    (year=2024): of a folder those below it, of a pattern and a list those of the whole path as it
    is written, of a single file none.

    Raises:
        SourceNotFound: a file in a list does not exist, or a pattern of tables matches none.
        SchemaError: files of several kinds.
        StoreError: a store does not answer, or cannot list.
    """
    if isinstance(path, (str, os.PathLike)):
        found = _of_url(str(path), storage_options) if is_remote(path) else _of_path(path)
    elif isinstance(path, (list, tuple)) and path:
        found = _of_list(path, storage_options)
    else:
        return None
    if found is not None and isinstance(path, ListedFiles):
        for file in found:
            file.about = path.about
    if found is not None:
        _check_files(found)
        _check_one_kind(found)
    return found


def _check_files(found: Iterable[TableFile]) -> None:
    """Raises SourceNotFound for what is no file here: opening a pipe would wait for its writer."""
    for file in found:
        if isinstance(file, LocalFile) and not isinstance(file, LanceFolder):
            try:
                check_file(file.name)
            except OSError as error:
                raise SourceNotFound(f"{file.name} cannot be read: {error.strerror}") from error


def _of_path(given: str | os.PathLike[str]) -> list[TableFile] | None:
    path = os.fspath(given)
    if is_lance(path):
        return [LanceFolder(path.rstrip("/"))]
    if os.path.isdir(path):
        return _of_folder(path)
    if table_kind(path) is None:
        return None
    if os.path.exists(path):
        return [LocalFile(path)]
    if not _PATTERN.intersection(path):
        return None
    matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    if not matches:
        raise SourceNotFound(f"{path} matches no file")
    return [_local(name) for name in matches]


def _of_list(
    paths: Iterable[Any], storage_options: Mapping[str, Any] | None
) -> list[TableFile] | None:
    names = [os.fspath(p) if isinstance(p, (str, os.PathLike)) else None for p in paths]
    known = isinstance(paths, ListedFiles) and paths.about.table is not None
    tables = [name for name in names if name is not None and (known or table_kind(name))]
    if len(tables) != len(names):
        return None
    stores: dict[str, Store] = {}
    found: list[TableFile] = []
    for name in tables:
        if is_remote(name):
            root, key = split(name)
            store = stores.get(root) or stores.setdefault(root, open_store(root, storage_options))
            if table_kind(key) == "lance" and not known:
                found.append(LanceUrl(store, key))
            else:
                found.append(StoreFile(store, key, values_of(key.split("/")[:-1])))
        elif is_lance(name):
            found.append(LanceFolder(name.rstrip("/")))
        elif os.path.isfile(name):
            found.append(_local(name))
        else:
            raise SourceNotFound(f"{name} does not exist")
    return found


def _of_folder(folder: str) -> list[TableFile] | None:
    """Returns the files in the order of their paths; None if there is an image or sound file."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=unless_gone):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in names:
            if name.lower().endswith(_OF_SAMPLES):
                return None
            if table_kind(name) not in (None, "lance") and not name.startswith((".", "_")):
                found.append(os.path.join(parent, name))
    found.sort(key=lambda name: Path(name).parts)
    return [LocalFile(p, values_of(Path(p).relative_to(folder).parts[:-1])) for p in found] or None


def _local(path: str) -> LocalFile:
    return LocalFile(path, values_of(Path(path).parts[:-1]))


def _of_url(url: str, storage_options: Mapping[str, Any] | None) -> list[TableFile] | None:
    root, key = split(url)
    is_pattern = not _PATTERN.isdisjoint(key)
    if is_pattern and table_kind(key) is None:
        return None
    store = open_store(root, storage_options)
    if is_pattern:
        return _of_url_pattern(store, key)
    if table_kind(key.rstrip("/")) == "lance":
        return [LanceUrl(store, key)]
    if table_kind(key) is not None:
        return [StoreFile(store, key, {})]
    return _of_url_folder(store, key.strip("/"))


def _of_url_pattern(store: Store, pattern: str) -> list[TableFile]:
    # A store lists by prefix only. The pattern from the first wildcard on is compared here.
    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    wanted = re.compile(_regular(pattern))
    found: list[TableFile] = [
        StoreFile(store, key, values_of(key.split("/")[:-1]), stamp)
        for key, stamp in sorted(store.list(prefix), key=_parts)
        if wanted.fullmatch(key)
    ]
    if not found:
        raise SourceNotFound(f"{without_secrets(join(store.url, pattern))} matches no object")
    return found


def _of_url_folder(store: Store, folder: str) -> list[TableFile] | None:
    """Returns as `_of_folder`; None also for a packed dataset, finished or not."""
    prefix = folder + "/" if folder else ""
    found: list[TableFile] = []
    first = next(store.pages(folder), [])
    if any(key.lower().endswith((*_OF_SAMPLES, ".tar")) for key, _ in first):
        return None  # without the rest of the listing, which may be long
    for key, stamp in sorted(store.list(prefix), key=_parts):
        *folders, name = key.removeprefix(prefix).split("/")
        if name.lower().endswith((*_OF_SAMPLES, ".tar")) or name in _OF_DATASETS:
            return None
        hidden = any(part.startswith((".", "_")) for part in (*folders, name))
        if table_kind(name) is not None and not hidden:
            found.append(StoreFile(store, key, values_of(folders), stamp))
    return found or None


def _parts(listed: tuple[str, Stamp]) -> list[str]:
    return listed[0].split("/")


def _regular(pattern: str) -> str:
    """Returns a pattern of glob as a regular expression; "**/" is any folders, "*" in one."""
    found = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            found, at = found + r"(?:[^/.][^/]*/)*", at + 3
            continue
        character = pattern[at]
        end = pattern.find("]", at + 2) if character == "[" else -1
        if character in "*?":
            # A leading dot is only matched by a dot.
            start = r"(?!\.)" if not found or found.endswith(("/", "/)*")) else ""
            found += start + {"*": "[^/]*", "?": "[^/]"}[character]
        elif end > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\")
            found += f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
            at = end
        else:
            found += re.escape(character)
        at += 1
    return found


def _check_one_kind(files: Sequence[TableFile]) -> None:
    first_of: dict[str, str] = {}
    for file in files:
        first_of.setdefault(file.kind, file.name)
    if len(first_of) > 1:
        raise SchemaError(
            f"there are tables of different kinds: {' and '.join(first_of.values())}; choose "
            "one kind, for example 'folder/*.parquet'"
        )


NULL = "__HIVE_DEFAULT_PARTITION__"


def values_of(folders: Iterable[str]) -> dict[str, str | None]:
    """Returns the partition values in names of folders, outermost first, percent-decoded."""
    found: dict[str, str | None] = {}
    for folder in folders:
        name, mark, value = folder.partition("=")
        if mark and name:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found
