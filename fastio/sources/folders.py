"""Folders of image files and of sound files as kinds of data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from fastio.packed import BadImage, ImagesCheck, ShardCheck, check_file
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.runtime.files import read_file
from fastio.sources.audio_folder import AUDIO_EXTENSIONS, AudioFolder, folder_extension
from fastio.sources.base import (
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    checked_files,
    decoded_images,
    files_findings,
)
from fastio.sources.folder import IMG_EXTENSIONS, FolderDataset
from fastio.store import is_remote

_ROWS_AT_ONCE = 64


def _first_of(source: Any) -> int | None:
    """0 for a folder whose first file of either kind is an image, 1 for sound; else None."""
    if not isinstance(source, (str, os.PathLike)) or is_remote(source):
        return None
    return folder_extension(source, [IMG_EXTENSIONS, AUDIO_EXTENSIONS])


def _sniff_images(source: Any, options: Options) -> str | None:
    return os.fspath(source) if _first_of(source) == 0 else None


def _sniff_sounds(source: Any, options: Options) -> str | None:
    return os.fspath(source) if _first_of(source) == 1 else None


def _open_images(found: Found) -> FolderDataset:
    return FolderDataset(found.parts)


def _open_sounds(found: Found) -> AudioFolder:
    return AudioFolder(found.parts)


def _describe(found: Found) -> dict[str, Any]:
    dataset = found.kind.open(found)
    assert isinstance(dataset, FolderDataset)
    return {
        "path": dataset.path,
        "rows": len(dataset),
        **dataset.schema.to_json(),
        "fingerprint": dataset.fingerprint,
    }


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    dataset = found.kind.open(found)
    assert isinstance(dataset, FolderDataset)
    dataset.limit(found.options.max_pixels, None)
    reads = in_order(_check_file, list(dataset.paths), available_cores())
    checks = checked_files(reads, "files", len(dataset), progress)
    findings = files_findings(dataset.path, checks, len(dataset))
    if deep and dataset.schema.image_fields:
        images = in_order(partial(_decode, dataset), _spans(len(dataset)), available_cores())
        findings.images = decoded_images(images, len(dataset), progress)
    return findings


def _check_file(path: str) -> ShardCheck:
    """Whether a file can be read to its end; files as they are have no checksums."""
    try:
        return ShardCheck(path, len(read_file(path)), None)
    except OSError as error:
        return ShardCheck(path, 0, error.strerror or str(error))


def _spans(rows: int) -> Iterator[range]:
    return (
        range(begin, min(begin + _ROWS_AT_ONCE, rows)) for begin in range(0, rows, _ROWS_AT_ONCE)
    )


def _decode(dataset: FolderDataset, rows: range) -> ImagesCheck:
    bad = []
    for row in rows:
        try:
            check_file(read_file(dataset.paths[row]), dataset.max_pixels)
        except (OSError, ValueError) as error:
            bad.append(BadImage(row, dataset.paths.relative(row), row, "image", str(error)))
    return ImagesCheck(len(rows), bad)


IMAGE_FOLDER = Kind(
    "folder",
    "a folder of images",
    (FolderDataset,),
    frozenset(),
    _sniff_images,
    _open_images,
    _describe,
    _check,
)
SOUND_FOLDER = Kind(
    "sounds",
    "a folder of sound files",
    (AudioFolder,),
    frozenset(),
    _sniff_sounds,
    _open_sounds,
    _describe,
    _check,
)
