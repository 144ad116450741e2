"""Folders of image files and of sound files, seen as datasets without packing them.

Classes, order and errors are those of torchvision.datasets.ImageFolder. The files lie on this
machine, or are objects of a store (`stored_files`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import SampleError, SourceChanged, SourceNotFound
from fastio.packed.layout import (
    WHOLE_FILE,
    ImageReads,
    Range,
    encoded_reads,
    is_jpeg_name,
)
from fastio.packed.remote import Remote, Staged
from fastio.packed.rows import Rows
from fastio.packed.sample_errors import of_sample
from fastio.runtime.files import check_file, read_file, walk
from fastio.runtime.texts import Computed, Texts
from fastio.schema import Bytes, Field, Image, Scalar, Schema
from fastio.shown import without_secrets
from fastio.sources.stored_files import StoredFiles, of_urls
from fastio.store import Store, absolute_path, is_remote

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class PathTable(Computed[str]):
    """Paths below a folder `root`, or URLs below one; `names` has what comes after it."""

    def __init__(self, root: str, names: Iterable[str] | Texts) -> None:
        self.root = absolute_path(root)
        self.names = names if isinstance(names, Texts) else Texts.of(names)

    def __len__(self) -> int:
        return len(self.names)

    def _at(self, number: int) -> str:
        return os.path.join(self.root, self.names[number])

    def of(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the paths of rows, int64 (n,), which are in [0, len(self)). Faster for many."""
        folder = os.path.join(self.root, "")
        return [folder + os.fsdecode(name) for name in self.names.encoded(rows)]

    def relative(self, index: int) -> str:
        """Returns a path without the folder; negative numbers count from the end."""
        return self.names[index]


class FolderDataset(Remote):
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
        stored: the objects of the rows, if the files are in a store; else None.
        details: a table with more fields of the rows; None if there is none.
        upright: whether images are rotated according to their EXIF orientation.

    Raises:
        SourceNotFound: the folder does not exist, has no class folders, or a class has no images.
    """

    recodes = True
    field = "image"  # the name of the field of the files
    stored: StoredFiles | None = None
    details: Rows | None = None  # a table with a row for each file
    _of_details = ""  # the part of the keys of rows that changes with this table

    def __init__(
        self, path: str | os.PathLike[str], extensions: Sequence[str] = IMG_EXTENSIONS
    ) -> None:
        root = os.fspath(absolute_path(path))
        classes = _find_classes(root, tuple(extensions))
        relative: list[str] = []
        counts = []
        for name in classes:
            before = len(relative)
            relative += _find_files(root, name, tuple(extensions))
            counts.append(len(relative) - before)
        labels = class_labels(root, classes, counts, extensions)
        self._fill(root, PathTable(root, relative), labels, classes)

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[tuple[str, int]],
        classes: Sequence[str],
        path: str = "",
        *,
        upright: bool = True,
        labelled: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FolderDataset:
        """Returns a dataset of listed files, as torchvision's ImageFolder has them in `samples`.

        Args:
            samples: (path, label) of each row; or (URL, label), all in one bucket or on one host.
            classes: the classes' names; none if the numbers have no names.
            path: folder that the paths begin with, for messages. Where all do, the fingerprint
                stands for what comes after it, as with an image folder.
            upright: turn images as their EXIF orientation says; False delivers them as they are
                stored, as torchvision does.
            labelled: whether samples are (file, label). If False, a sample is only the file.
            storage_options: for URLs: options of their file system.

        Raises:
            SourceNotFound: the list is empty, or there is no such object.
            SchemaError: URLs of several buckets or hosts.
            StoreError: a store does not answer.
        """
        if not samples:
            raise SourceNotFound("the list of samples is empty")
        self = cls.__new__(cls)
        labels = np.array([label for _, label in samples], np.int64) if labelled else None
        names = [name for name, _ in samples]
        self.upright = upright
        if is_remote(names[0]):
            self._fill_stored(of_urls(names, storage_options), labels, classes)
            return self
        # Names relative to one folder take less memory, and copies of the folder count as the same
        # data.
        below = [name[len(os.path.join(path, "")) :] for name in names]
        if [os.path.join(path, name) for name in below] == names:
            paths = PathTable(path, below)
        else:
            names = [name if os.path.isabs(name) else absolute_path(name) for name in names]
            paths = PathTable("", names)
        self._fill(path, paths, labels, classes)
        return self

    def _fill(
        self, path: str, paths: PathTable, labels: NDArray[np.int64] | None, classes: Sequence[str]
    ) -> None:
        """Sets the files, and the fields: a tuple of a file and a label, or only the file."""
        labelled = labels is not None
        self.path = absolute_path(path)
        self.paths = paths
        self.labels = np.zeros(len(paths), np.int64) if labels is None else labels
        fields: dict[str, Field] = {self.field: Image() if self.field == "image" else Bytes()}
        if labelled:
            fields["label"] = Scalar("int64")
        named = tuple(classes) if labelled else ()
        self.schema = Schema(fields, "tuple" if labelled else "single", named or None)
        digest = xxhash.xxh3_64(paths.names.digest())
        digest.update(self.labels.tobytes())
        digest.update("\0".join(classes).encode("utf-8", "surrogateescape"))
        self._fingerprint = digest.hexdigest()

    def _fill_stored(
        self, stored: StoredFiles, labels: NDArray[np.int64] | None, classes: Sequence[str]
    ) -> None:
        self.stored, self.separate = stored, True
        url = stored.store.url
        self._fill(url, PathTable(url, stored.objects.names), labels, classes)
        # Pieces in caches, and states, are of these versions.
        digest = xxhash.xxh3_64(self._fingerprint.encode() + stored.digest())
        self._fingerprint = digest.hexdigest()

    @classmethod
    def of_objects(
        cls,
        stored: StoredFiles,
        labels: NDArray[np.int64] | None = None,
        classes: Sequence[str] = (),
    ) -> FolderDataset:
        """Returns a dataset of objects of a store.

        Args:
            stored: the objects, in the order of the rows.
            labels: int64 (rows,), numbers of the classes. None: a sample is only the file.
            classes: the classes' names.
        """
        self = cls.__new__(cls)
        self._fill_stored(stored, labels, classes)
        return self

    def describe(self, table: Rows, schema: Schema) -> None:
        """Makes samples those of a schema, which has the file and fields of a table.

        Args:
            table: the table, which has a row for each file. `close` closes it.
            schema: the fields.
        """
        self.schema, self.details = schema, table
        self._of_details = f" {table.fingerprint}"
        both = f"{self._fingerprint} {table.fingerprint}"
        self._fingerprint = xxhash.xxh3_64_hexdigest(both.encode())

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
        name, where = type(self).__name__, without_secrets(self.path)
        return f"{name}({where!r}, rows={len(self)}, classes={len(self.classes or ())})"

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """See `Rows`."""
        kinds, rows = self._not_images(fields), self._in_range(rows)
        own = [name for name in kinds if self.details is None or name == self.field]
        others = [name for name in kinds if name not in own]
        found = dict(self.details.gather_all(others, rows)) if self.details and others else {}
        for name in own:
            is_file = isinstance(kinds[name], Bytes)
            found[name] = list(map(self._read, rows.tolist())) if is_file else self.labels[rows]
        return found

    def _read(self, row: int, *, staged: bool = True) -> bytes:
        with of_sample(self, row):
            if self.stored is None:
                return read_file(self.paths[row])
            try:
                return self.stored.read(row, staged=staged)
            except (SourceNotFound, SourceChanged) as error:  # of this object, and not of all
                raise SampleError(self.path, row, self.sample_name(row), error) from error

    def read(self, field: str, row: int) -> bytes:
        """See `Rows`. Files of sound can be read, too."""
        if field != self.field:
            return super().read(field, row)
        return read_file(self.paths[row]) if self.stored is None else self._read(row, staged=False)

    def row_key(self, row: int) -> str:
        """Returns the path of a file below the folder, its class, and the versions of its data.

        The class is named, because its number changes when the list of classes grows.
        """
        name = self.paths.relative(row) + self._about(row)
        return name if self.stored is None else f"{name} {self.stored.objects.stamp(row).key}"

    def _about(self, row: int) -> str:
        label, classes = int(self.labels[row]), self.classes or ()
        name = classes[label] if 0 <= label < len(classes) else label
        return f" {name}{self._of_details}"

    def sample_name(self, row: int) -> str:
        """Returns how messages name a row: its file's path."""
        return self.paths[row]

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`. Files have new numbers in each batch: a table of all paths would be large."""
        if not isinstance(self._field(field), Image):
            return super().image_reads(field, rows)
        paths = self.paths.of(rows)
        n, stored = len(paths), self.stored
        return encoded_reads(
            paths.__getitem__ if stored is None else self.paths.__getitem__,
            np.arange(n, dtype=np.int32) if stored is None else rows,
            np.zeros(n, np.int64),
            np.full(n, WHOLE_FILE, np.int64) if stored is None else stored.objects.sizes[rows],
            np.array([is_jpeg_name(path) for path in paths], np.bool_),
            upright=self.upright,
            same_files=False,
        )

    def close(self) -> None:
        """Closes the store; files of this machine are not open."""
        if self.stored is not None:
            self.stored.store.close()
        if self.details is not None:
            self.details.close()

    # --- Objects of a store -----------------------------------------------------------------------

    @property
    def remote_part(self) -> FolderDataset | None:
        """The dataset itself if its files are in a store."""
        return None if self.stored is None else self

    @property
    def store(self) -> Store:
        """The store of the objects."""
        assert self.stored is not None
        return self.stored.store

    @property
    def nbytes(self) -> int:
        """The size of all objects in bytes."""
        assert self.stored is not None
        return self.stored.nbytes

    @property
    def lineage(self) -> str:
        """See `Remote`. Versions of a folder have the same URL."""
        assert self.stored is not None
        about = f"{self.field}\0{self.stored.place}"
        return xxhash.xxh3_64_hexdigest(about.encode("utf-8", "surrogateescape"))

    def version(self, file: int) -> str:
        """See `Remote`."""
        assert self.stored is not None
        objects = self.stored.objects
        return f"{objects.names[file]}\0{objects.stamp(file).key}"

    def ranges(self, first: int, last: int) -> list[Range]:
        """Returns the objects of rows [first, last)."""
        assert self.stored is not None
        return self.stored.ranges(first, last)

    def describes(self, rows: NDArray[np.int64]) -> bool:
        """Returns whether rows can be read without files that are not images."""
        return bool(self.schema.image_fields)

    def read_through(self, staged: Staged) -> None:
        """Reads files from staged blocks, which `staged` gives."""
        assert self.stored is not None
        self.stored.read_through(staged)


def class_labels(
    root: str, classes: Sequence[str], counts: Sequence[int], extensions: Sequence[str]
) -> NDArray[np.int64]:
    """Returns the number of the class of each file, given the number of files of each class.

    Raises:
        SourceNotFound: a class has no files. The message names the folder `root`.
    """
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise SourceNotFound(
            f"Found no valid file for the classes {', '.join(empty)} in {root}. Supported "
            f"extensions are: {', '.join(extensions)}"
        )
    return np.repeat(np.arange(len(classes), dtype=np.int64), counts)


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
    field = "audio"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        root = os.fspath(absolute_path(path))
        names = flat_files(root, AUDIO_EXTENSIONS)
        if not names:
            super().__init__(root, AUDIO_EXTENSIONS)
            return
        self._fill(root, PathTable(root, names), None, ())

    def row_key(self, row: int) -> str:
        """Returns the path of a row's file, and its size and time if there is one."""
        if self.stored is not None:
            return super().row_key(row)
        # Sound is packed as bytes, so only the size and time of the file show that it has changed.
        path = self.paths[row]
        try:
            status = os.stat(path)
        except OSError:  # reading the file will raise it
            return path + self._about(row)
        return f"{path} {status.st_size} {status.st_mtime_ns}{self._about(row)}"

    def sound_file(self, field: str, row: int) -> str | NDArray[np.uint8]:
        """Returns the path of a row's file, or OSError: libsndfile waits for a pipe's writer."""
        if self.stored is not None:
            return super().sound_file(field, row)
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
    # Hidden folders are made by tools, and are not classes.
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
