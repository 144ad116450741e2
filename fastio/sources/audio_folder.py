"""A folder of sound files, with or without a folder for each class, seen as a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.errors import SchemaError, SourceNotFound
from fastio.packed.of_sample import of_sample
from fastio.runtime.files import check_file, read_file, walk
from fastio.schema import Bytes, Scalar, Schema
from fastio.shown import without_secrets
from fastio.sources.folder import FolderDataset, PathTable

AUDIO_EXTENSIONS = (
    *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3"),
    *(".aiff", ".aif", ".aifc", ".au", ".caf", ".w64"),
)


class AudioFolder(FolderDataset):
    """Sound files in class folders, as (audio, label) samples; or in one folder, as audio only.

    Opening lists file names only: a file is opened when its sample is read. Classes and order are
    as in image folders.

    Args:
        path: folder with one folder per class, with files at any depth; or a folder with files.

    Attributes:
        schema: a tuple of the fields `audio` (bytes of the file) and `label` (int64), with the
            names of the classes; without class folders, the single field `audio`.

    Raises:
        SourceNotFound: the folder does not exist, or has no sound files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        root = os.fspath(path)
        names = flat_files(root, AUDIO_EXTENSIONS)
        if names:
            self._fill(root, PathTable(root, names), np.zeros(len(names), np.int64), ())
            self.schema = Schema({"audio": Bytes()}, "single")
            return
        super().__init__(path, AUDIO_EXTENSIONS)
        classes = self.schema.classes
        self.schema = Schema({"audio": Bytes(), "label": Scalar("int64")}, "tuple", classes)

    def __repr__(self) -> str:
        return f"AudioFolder({without_secrets(self.path)!r}, rows={len(self)})"

    def gather(self, field: str, rows: NDArray[np.int64]) -> Any:
        """Labels, or files' bytes, of many rows.

        Returns:
            int64 (n,), or a list of n bytes.

        Raises:
            SchemaError: another field.
            IndexError: a row number is out of range.
            SampleError: a file cannot be read.
        """
        if field == "label" and field in self.schema.fields:
            return super().gather(field, rows)
        if field != "audio":
            raise SchemaError(f"{self.path} has no field {field!r}; it has audio and label")
        return [self._read(row) for row in np.asarray(rows, np.int64).tolist()]

    def sound_file(self, field: str, row: int) -> str:
        """Returns the path of a row's file.

        Raises:
            OSError: it is no file; libsndfile would wait for a pipe's writer.
        """
        path = self.paths[row]
        check_file(path)
        return path

    def __getitem__(self, index: int) -> Any:
        """One sample: the file's bytes, and its label where there are classes."""
        path = self.paths[index]  # which says what is out of range
        row = index + len(self) if index < 0 else index
        assert path
        data = self._read(row)
        return (data, int(self.labels[row])) if len(self.schema.fields) > 1 else data

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def _read(self, row: int) -> bytes:
        path = self.paths[row]
        with of_sample(self, row):
            return read_file(path)


def flat_files(root: str, extensions: Sequence[str]) -> list[str]:
    """Names of the files of a folder that has no folders in it, in order; else none."""
    try:
        with os.scandir(root) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found]
    except OSError:
        return []  # for the caller's next step to name
    if any(is_folder and not name.startswith(".") for name, is_folder in entries):
        return []
    return sorted(name for name, _ in entries if name.lower().endswith(tuple(extensions)))


def folder_extension(root: str | os.PathLike[str], kinds: Sequence[Sequence[str]]) -> int | None:
    """Which of some kinds of files a folder has: the kind of the first file that is of any.

    Args:
        root: the folder.
        kinds: for each kind its endings, in lower case.

    Raises:
        SourceNotFound: a folder cannot be read, or links form a cycle.
    """
    try:
        for _, folders, names in walk(root):
            folders.sort()
            for name in sorted(names):
                for number, endings in enumerate(kinds):
                    if name.lower().endswith(tuple(endings)):
                        return number
    except OSError as error:
        raise SourceNotFound(f"{error.filename}: {error.strerror}") from error
    return None
