"""Folders and lists of image files and of sound files as kinds of data, here and behind URLs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from fastio.errors import FastioError, SourceNotFound, StoreError
from fastio.packed import ShardCheck
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.runtime.files import read_file
from fastio.sources.base import (
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    check_image_files,
    checked_files,
    described,
    files_findings,
)
from fastio.sources.described import metadata_beside, open_described
from fastio.sources.folder import (
    AUDIO_EXTENSIONS,
    IMG_EXTENSIONS,
    AudioFolder,
    FolderDataset,
    class_labels,
    folder_extension,
)
from fastio.sources.listed import ListedFiles
from fastio.sources.stored_files import StoredFiles, listed, of_urls
from fastio.store import OBJECTS_AT_ONCE, Store, is_remote, open_store

_EXTENSIONS = (IMG_EXTENSIONS, AUDIO_EXTENSIONS)
# A folder behind a URL is of another kind if its first objects, in pages of 1,000, are.
_PAGES_LOOKED_AT = 20


Parts = str | Store | tuple[str, ...] | ListedFiles  # a tuple has URLs of files


def _sniff(number: int, source: Any, options: Options) -> Parts | None:
    """Returns a folder whose first image or sound file is of kind `number`, or a list of files."""
    if isinstance(source, ListedFiles):
        fits = [name.lower().endswith(_EXTENSIONS[number]) for name in source]
        return source if fits and all(fits) else None
    if isinstance(source, (list, tuple)):
        names = tuple(source)
        ours = names and all(is_file_url(name, _EXTENSIONS[number]) for name in names)
        return names if ours else None
    if not isinstance(source, (str, os.PathLike)):
        return None
    if not is_remote(source):
        is_it = folder_extension(source, _EXTENSIONS) == number
        return os.fspath(source) if is_it else None
    store = open_store(str(source), options.storage_options)
    # If the store does not list the URL, another kind may know it, or `why_nothing` says what to
    # do.
    with suppress(SourceNotFound, StoreError):  # it does not list
        if _first_kind(store) == number:
            return store
    return None


def is_file_url(
    name: Any, extensions: Sequence[str] = (*IMG_EXTENSIONS, *AUDIO_EXTENSIONS)
) -> bool:
    """Returns whether something is the URL of an image or sound file."""
    if not (isinstance(name, str) and is_remote(name)):
        return False
    return name.partition("?")[0].lower().endswith(tuple(extensions))


def _first_kind(store: Store) -> int | None:
    """Returns the number of the kind that the first file below the URL of a store has, or None."""
    for page in islice(store.pages(), _PAGES_LOOKED_AT):
        for name, _ in page:
            for number, endings in enumerate(_EXTENSIONS):
                if name.lower().endswith(endings):
                    return number
    return None


def _opened(found: Found) -> FolderDataset:
    (opener,) = found.kind.classes
    assert issubclass(opener, FolderDataset)
    dataset = _dataset(opener, found)
    if not isinstance(found.parts, str):
        dataset.cache = found.options.kept
    return dataset


def _dataset(opener: type[FolderDataset], found: Found) -> FolderDataset:
    parts, options = found.parts, found.options
    listed_here = metadata_beside(parts) if isinstance(parts, str) else None
    metadata = parts if isinstance(parts, ListedFiles) else listed_here
    if metadata is not None and metadata.about.metadata:
        return open_described(opener, metadata.about, options)
    if isinstance(parts, str):
        return opener(parts)
    if isinstance(parts, ListedFiles):
        return _of_listed(opener, parts, options)
    if isinstance(parts, tuple):
        return opener.of_objects(of_urls(parts, options.storage_options))
    return _stored_folder(opener, parts, options)


def _of_listed(opener: type[FolderDataset], files: ListedFiles, options: Options) -> FolderDataset:
    """Returns a dataset of listed files.

    Their folders are the classes if the datasets package treats them as classes.
    """
    folders = [name.rpartition("/")[0].rpartition("/")[2] for name in files]
    classes = tuple(sorted(set(folders)))
    labelled = files.about.labels
    if labelled is None:
        labelled = len(classes) > 1 and len({name.count("/") for name in files}) == 1
    number = {name: place for place, name in enumerate(classes)}
    labels = np.fromiter((number[name] for name in folders), np.int64, len(folders))
    if is_remote(files[0]):
        stored = of_urls(files, options.storage_options)
        return opener.of_objects(stored, *((labels, classes) if labelled else ()))
    samples = list(zip(files, labels.tolist(), strict=True))
    return opener.from_samples(samples, classes, files.about.name, labelled=labelled)


def _stored_folder(opener: type[FolderDataset], store: Store, options: Options) -> FolderDataset:
    """Returns the dataset of the folder that is the URL of a store.

    Raises:
        SourceNotFound: It has no class folders, or a class has no files of the kind.
        StoreError: The store does not answer.
    """
    sounds = issubclass(opener, AudioFolder)
    extensions = AUDIO_EXTENSIONS if sounds else IMG_EXTENSIONS
    folders: set[str] = set()

    def wanted(name: str) -> bool:
        folder, slash, _ = name.partition("/")
        if slash:
            folders.add(folder)
        return name.lower().endswith(extensions)

    listing_s = (options.storage_options or {}).get("listing_s")
    objects = listed(store, wanted, opener.__name__, options.kept, listing_s)
    rows_of: dict[str, list[int]] = {name: [] for name in folders}
    flat: list[int] = []
    names = list(objects.names)
    for row, name in enumerate(names):
        folder, slash, _ = name.partition("/")
        if slash:
            # For a listing from the cache, `wanted` was not called, and `folders` is empty.
            rows_of.setdefault(folder, []).append(row)
        else:
            flat.append(row)
    if sounds and flat and all(folder.startswith(".") for folder in rows_of):
        rows = np.array(sorted(flat, key=names.__getitem__), np.int64)
        return opener.of_objects(StoredFiles(store, objects.taken(rows)))
    if not rows_of:
        raise SourceNotFound(
            f"Couldn't find any class folder in {store.url}. {len(flat)} files are directly in it: "
            "put them in one folder for each class, or pass a list of their URLs"
        )
    classes = sorted(rows_of)
    counts = [len(rows_of[name]) for name in classes]
    labels = class_labels(store.url, classes, counts, extensions)
    # As torchvision orders them: by the folder of a file, and then by its name.
    ordered = [
        sorted(rows_of[name], key=lambda row: names[row].rpartition("/")[::2]) for name in classes
    ]
    rows = np.fromiter((row for rows in ordered for row in rows), np.int64)
    return opener.of_objects(StoredFiles(store, objects.taken(rows)), labels, classes)


def _pack(found: Found, skip_damaged: bool) -> FolderDataset:
    return found.source if isinstance(found.source, FolderDataset) else _opened(found)


def _describe(found: Found) -> dict[str, Any]:
    with _opened(found) as dataset:
        return described(dataset, None if dataset.stored is None else dataset.nbytes)


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    with _opened(found) as dataset:
        dataset.limit(found.options.max_pixels, None)
        threads = available_cores() if dataset.stored is None else OBJECTS_AT_ONCE
        reads = in_order(partial(_check_file, dataset), range(len(dataset)), threads)
        checks = checked_files(reads, "files", len(dataset), progress)
        findings = files_findings(dataset.path, checks, len(dataset))
        if deep and dataset.schema.image_fields:
            findings.images = check_image_files(dataset, dataset.paths.relative, progress)
        return findings


def _check_file(dataset: FolderDataset, row: int) -> ShardCheck:
    """Reads a file or an object to its end; files as they are have no checksums."""
    stored, paths = dataset.stored, dataset.paths
    name = paths[row] if stored is None else paths.relative(row)
    try:
        data = read_file(name) if stored is None else stored.read(row)
    except (FastioError, OSError) as error:
        return ShardCheck(name, 0, getattr(error, "strerror", None) or str(error))
    return ShardCheck(name, len(data), None)


def _kind(number: int, key: str, name: str, limit: str, opener: type[FolderDataset]) -> Kind:
    sniff = partial(_sniff, number)
    options = frozenset({"cache", "partitions", limit})
    return Kind(key, name, (opener,), options, sniff, _opened, _describe, _check, _pack)


IMAGE_FOLDER = _kind(0, "folder", "a folder of images", "max_pixels", FolderDataset)
SOUND_FOLDER = _kind(1, "sounds", "a folder of sound files", "max_unzipped_bytes", AudioFolder)
