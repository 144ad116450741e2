"""Folders of image files and of sound files, seen as datasets without packing them.

Classes, order and errors are those of torchvision.datasets.ImageFolder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import SourceNotFound
from fastio.packed import ShardCheck
from fastio.packed.layout import WHOLE_FILE, ImageReads, encoded_reads, is_jpeg_name
from fastio.packed.rows import Rows, of_sample
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.runtime.files import check_file, read_file, walk
from fastio.schema import Bytes, Image, Scalar, Schema
from fastio.shown import without_secrets
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
from fastio.store import is_remote

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class PathTable(Sequence[str]):
    """Paths below a folder `root`, kept as one string of bytes: a tenth of what a list takes."""

    def __init__(self, root: str, relative: Iterable[str]) -> None:
        self.root = root
        names = [os.fsencode(path) for path in relative]
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        self._data = b"".join(names)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        return os.path.join(self.root, self.relative(index))

    def of(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the paths of rows, int64 (n,), which are in [0, len(self)). Faster for many."""
        begins = np.where(rows > 0, self._ends[rows - 1], 0).tolist()
        ends, folder = self._ends[rows].tolist(), os.path.join(self.root, "")
        parts = zip(begins, ends, strict=True)
        return [folder + os.fsdecode(self._data[begin:end]) for begin, end in parts]

    def relative(self, index: int) -> str:
        """Returns a path without the folder; negative numbers count from the end."""
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} is out of range: there are {len(self)} files")
        begin = int(self._ends[row - 1]) if row else 0
        return os.fsdecode(self._data[begin : int(self._ends[row])])

    def digest(self) -> bytes:
        """Returns a hash of the relative paths and their order."""
        return xxhash.xxh3_128(self._ends.tobytes() + self._data).digest()


class FolderDataset(Rows):
    """Images in class folders, as (image, label) samples, where label is the number of the class.

    Opening lists file names only: a file is opened when its sample is read.

    Args:
        path: folder with one folder per class, with images at any depth.
        extensions: lower-case extensions of the files to include.

    Attributes:
        path: the folder.
        schema: a tuple of the fields `image` (RGB) and `label` (int64), with the names of the
            classes.
        paths: paths of the files in row order.
        labels: int64 (rows,), numbers of the classes.
        upright: whether images are rotated according to their EXIF orientation.

    Raises:
        SourceNotFound: the folder does not exist, has no class folders, or a class has no images.
    """

    recodes = True

    def __init__(
        self, path: str | os.PathLike[str], extensions: Sequence[str] = IMG_EXTENSIONS
    ) -> None:
        root = os.fspath(path)
        classes = _find_classes(root, tuple(extensions))
        relative: list[str] = []
        counts = []
        for name in classes:
            before = len(relative)
            relative += _find_files(root, name, tuple(extensions))
            counts.append(len(relative) - before)
        empty = [name for name, count in zip(classes, counts, strict=True) if not count]
        if empty:
            raise SourceNotFound(
                f"Found no valid file for the classes {', '.join(empty)} in {root}. Supported "
                f"extensions are: {', '.join(extensions)}"
            )
        labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        self._fill(root, PathTable(root, relative), labels, tuple(classes))

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[tuple[str, int]],
        classes: Sequence[str],
        path: str = "",
        *,
        upright: bool = True,
    ) -> FolderDataset:
        """Returns a dataset of listed files, as torchvision's ImageFolder has them in `samples`.

        Args:
            samples: (path, label) of each row.
            classes: the classes' names.
            path: folder that the paths begin with, for messages. Where all do, the fingerprint
                stands for what comes after it, as with an image folder.
            upright: turn images as their EXIF orientation says; False delivers them as they are
                stored, as torchvision does.

        Raises:
            SourceNotFound: the list is empty.
        """
        if not samples:
            raise SourceNotFound("the list of samples is empty")
        self = cls.__new__(cls)
        labels = np.array([label for _, label in samples], dtype=np.int64)
        names = [name for name, _ in samples]
        below = [name[len(os.path.join(path, "")) :] for name in names]
        if [os.path.join(path, name) for name in below] == names:
            paths = PathTable(path, below)
        else:
            paths = PathTable("", names)
        self._fill(path, paths, labels, tuple(classes))
        self.upright = upright
        return self

    def _fill(
        self, path: str, paths: PathTable, labels: NDArray[np.int64], classes: tuple[str, ...]
    ) -> None:
        self.path = path
        self.paths = paths
        self.labels = labels
        self.schema = Schema({"image": Image(), "label": Scalar("int64")}, "tuple", classes)
        digest = xxhash.xxh3_64(paths.digest())
        digest.update(labels.tobytes())
        digest.update("\0".join(classes).encode("utf-8", "surrogateescape"))
        self._fingerprint = digest.hexdigest()

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, class number) of every row, as torchvision's ImageFolder has them."""
        return list(zip(self.paths, self.labels.tolist(), strict=True))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stand for the files' names, their order and labels."""
        return self._fingerprint

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        where = without_secrets(self.path)
        return f"FolderDataset({where!r}, rows={len(self)}, classes={len(self.classes or ())})"

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """See `Rows`."""
        kinds, rows = self._not_images(fields), self._in_range(rows)
        return {
            name: [self._read(row) for row in rows.tolist()]
            if isinstance(kind, Bytes)
            else self.labels[rows]
            for name, kind in kinds.items()
        }

    def _read(self, row: int) -> bytes:
        path = self.paths[row]
        with of_sample(self, row):
            return read_file(path)

    def read(self, field: str, row: int) -> bytes:
        """See `Rows`."""
        return read_file(self.paths[row])

    def row_key(self, row: int) -> str:
        """Returns the path of a row's file below the folder."""
        return self.paths.relative(row)

    def sample_name(self, row: int) -> str:
        """Returns how messages name a row: its file's path."""
        return self.paths[row]

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`. Files have new numbers in each batch: a table of all paths would be large."""
        paths = self.paths.of(rows)
        n = len(paths)
        return encoded_reads(
            paths.__getitem__,
            np.arange(n, dtype=np.int32),
            np.zeros(n, np.int64),
            np.full(n, WHOLE_FILE, np.int64),
            np.array([is_jpeg_name(path) for path in paths], np.bool_),
            upright=self.upright,
            same_files=False,
        )

    def close(self) -> None:
        """Does nothing, because no files are open."""


def _find_classes(root: str, extensions: tuple[str, ...]) -> list[str]:
    try:
        with os.scandir(root) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found]
    except NotADirectoryError as error:
        raise SourceNotFound(
            f"{root} is a file: give a folder with one subfolder of images per class, or a "
            "packed dataset"
        ) from error
    except FileNotFoundError as error:
        raise SourceNotFound(f"{root} does not exist") from error
    except OSError as error:
        raise SourceNotFound(f"{root} cannot be read: {error}") from error
    classes = sorted(name for name, is_folder in entries if is_folder)
    if not classes:
        images = sum(name.lower().endswith(extensions) for name, _ in entries)
        hint = f"{images} images are directly in it: move" if images else "Move"
        raise SourceNotFound(
            f"Couldn't find any class folder in {root}. {hint} images to one folder for each "
            "class, or list them in a CSV or JSONL file with a column `path` and pack that"
        )
    return classes


def _find_files(root: str, name: str, extensions: tuple[str, ...]) -> list[str]:
    """Returns the files below a class folder, relative to `root`, in torchvision's order."""
    files = []
    try:
        found = sorted(walk(os.path.join(root, name)))
    except OSError as error:
        raise SourceNotFound(f"{error.filename}: {error.strerror}") from error
    for folder, _, names in found:
        relative = os.path.relpath(folder, root)
        files += [
            os.path.join(relative, file)
            for file in sorted(names)
            if file.lower().endswith(extensions)
        ]
    return files


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

    recodes = False

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

    def row_key(self, row: int) -> str:
        """Returns the path of a row's file, and its size and time if there is one."""
        path = self.paths[row]
        try:
            status = os.stat(path)
        except OSError:
            return path
        return f"{path} {status.st_size} {status.st_mtime_ns}"

    def sound_file(self, field: str, row: int) -> str:
        """Returns the path of a row's file, or OSError: libsndfile waits for a pipe's writer."""
        path = self.paths[row]
        check_file(path)
        return path


def flat_files(root: str, extensions: Sequence[str]) -> list[str]:
    """Returns the names of the files of a folder without folders, in order; else none."""
    try:
        with os.scandir(root) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found]
    except OSError:
        return []  # the caller's next step raises the error
    if any(is_folder and not name.startswith(".") for name, is_folder in entries):
        return []
    return sorted(name for name, _ in entries if name.lower().endswith(tuple(extensions)))


def folder_extension(root: str | os.PathLike[str], kinds: Sequence[Sequence[str]]) -> int | None:
    """Returns the number of the kind that the first file of a folder has, at any depth, or None.

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


# --- Folders as kinds of data ---------------------------------------------------------------------


def _sniff(number: int, source: Any, options: Options) -> str | None:
    """Returns the path of a folder whose first image or sound file is of kind `number`."""
    if not isinstance(source, (str, os.PathLike)) or is_remote(source):
        return None
    is_it = folder_extension(source, [IMG_EXTENSIONS, AUDIO_EXTENSIONS]) == number
    return os.fspath(source) if is_it else None


def _opened(found: Found) -> FolderDataset:
    (opener,) = found.kind.classes
    dataset = opener(found.parts)  # type: ignore[call-arg]
    assert isinstance(dataset, FolderDataset)
    return dataset


def _pack(found: Found, skip_damaged: bool) -> FolderDataset:
    return found.source if isinstance(found.source, FolderDataset) else _opened(found)


def _describe(found: Found) -> dict[str, Any]:
    return described(_opened(found))


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    dataset = _opened(found)
    dataset.limit(found.options.max_pixels, None)
    reads = in_order(_check_file, list(dataset.paths), available_cores())
    checks = checked_files(reads, "files", len(dataset), progress)
    findings = files_findings(dataset.path, checks, len(dataset))
    if deep and dataset.schema.image_fields:
        findings.images = check_image_files(dataset, dataset.paths.relative, progress)
    return findings


def _check_file(path: str) -> ShardCheck:
    """Reads a file to its end; files as they are have no checksums."""
    try:
        return ShardCheck(path, len(read_file(path)), None)
    except OSError as error:
        return ShardCheck(path, 0, error.strerror or str(error))


def _kind(number: int, key: str, name: str, opener: type[FolderDataset]) -> Kind:
    sniff = partial(_sniff, number)
    options = frozenset({"cache"} if opener.recodes else ())
    return Kind(key, name, (opener,), options, sniff, _opened, _describe, _check, _pack)


IMAGE_FOLDER = _kind(0, "folder", "a folder of images", FolderDataset)
SOUND_FOLDER = _kind(1, "sounds", "a folder of sound files", AudioFolder)
