"""Writes the rows of a packed dataset to files: to a folder of images, or to WebDataset tars.

The same rows give the same bytes. Threads make the files of rows, which are taken in order.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PillowImage

from fastio.errors import ImageError, PackError
from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.progress import progress_bar
from fastio.packed import Dataset
from fastio.runtime.files import WholeFile, flush_folder, new_file
from fastio.schema import (
    CLASS_FIELDS,
    CODEC_BLOCKS,
    CODEC_JPEG,
    Array,
    Bytes,
    Field,
    Image,
    Scalar,
    Schema,
    Text,
    Tokens,
    is_integer,
)
from fastio.sources.tar.headers import KEY_FIELD, split_name
from fastio.sources.tar.values import category

LIST_NAME = "samples.jsonl"
_PATH_KEY = "path"
_LEAST_DIGITS = 6
_DEPTH_PER_WORKER = 16
_BUDGET_BYTES = 256 << 20
# Extensions that differ from the lower-case name of Pillow's format.
_SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2"}
# The names of tars that an export may replace or delete.
_OWN_NAME = re.compile(r"[0-9]{6,}\.tar")
# What an image's ending stands for before it is known, which is row by row.
_IMAGE = "image"


def digits_of(rows: int) -> int:
    """Returns the number of digits of row numbers in names, so that names sort as rows do."""
    return max(_LEAST_DIGITS, len(str(rows - 1)))


@dataclass(frozen=True)
class Made:
    """What was made of a row.

    Attributes:
        data: What `take` of the exporter takes.
        images, image_bytes: The number of its files that are images, and their size.
        held_bytes: The bytes that it takes in memory.
    """

    data: Any
    images: int
    image_bytes: int
    held_bytes: int = 0


def export_rows(
    exporter: FolderExporter | TarExporter, rows: Sequence[int], workers: int, progress: bool
) -> tuple[int, int]:
    """Writes rows with some threads, and returns the number of images and their bytes.

    Raises:
        ImageError, ShardCorrupt: A row is damaged. Files that are finished stay.
        OSError: A file cannot be written.
    """
    depth = workers * _DEPTH_PER_WORKER
    pipeline: OrderedPipeline[int, Made] = OrderedPipeline(
        exporter.make, lambda made: made.held_bytes, workers, depth, _BUDGET_BYTES
    )
    # The size of a row is known only after it was read: `make` returns it.
    submitted = (made for row in rows for made in pipeline.submit(row))
    images = nbytes = 0
    try:
        with progress_bar("exporting", exporter.counted, len(rows), progress) as advance:
            for made in chain(submitted, pipeline.drain()):
                exporter.take(made.data)
                images, nbytes = images + made.images, nbytes + made.image_bytes
                advance(1)
        exporter.finish()
    finally:
        pipeline.close()
        exporter.discard()
    return images, nbytes


def npy_bytes(value: Any) -> bytes:
    """Returns an array as an .npy file."""
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return file.getvalue()


def image_file(
    dataset: Dataset, field: str, row: int, hold: Callable[[int], None]
) -> tuple[bytes, str]:
    """Returns a stored image as the bytes of a file, and the file's extension.

    Raises:
        ImageError, ShardCorrupt: It is damaged.
    """
    stored = dataset.stored_image(field, row)
    hold(stored.data.nbytes)
    kind = dataset.schema.fields[field]
    assert isinstance(kind, Image)
    try:
        data = stored.as_file(kind.mode, dataset.codebook)
        jpeg = stored.codec in (CODEC_BLOCKS, CODEC_JPEG)
        return data, ".jpg" if jpeg else _suffix(data)
    except ValueError as error:
        raise ImageError(dataset.path, row, dataset.sample_name(row), error) from error


def _suffix(data: bytes) -> str:
    """Returns the extension for an image file by its contents; ValueError if it is unknown."""
    try:
        with PillowImage.open(io.BytesIO(data)) as image:
            kind = image.format or ""
    except Exception as error:  # Pillow's plugins raise errors of any type
        raise ValueError(f"not an image that Pillow knows: {error}") from error
    return _SUFFIXES.get(kind, f".{kind.lower()}")


# --- Folders --------------------------------------------------------------------------------------


class FolderExporter:
    """Writes the images of rows to files, and the other fields to a list.

    `make` is called by several threads, the rest by one.

    Args:
        dataset: The dataset.
        folder: The folder of the files.
        field: The image field.

    Attributes:
        counted: What the rows are called.
        index: The path of the list of samples; None if the folders' names hold all information.
    """

    counted = "images"

    def __init__(self, dataset: Dataset, folder: Path, field: str) -> None:
        self._dataset = dataset
        self._folder = folder
        self._field = field
        self._class_field, self._class_folders = _classes(dataset.schema)
        self._digits = digits_of(len(dataset))
        self._others = {
            name: kind
            for name, kind in dataset.schema.fields.items()
            if not isinstance(kind, Image)
        }
        self._file_names = dict(zip(self._others, _file_names(self._others), strict=True))
        listed = set(self._others) != {self._class_field} - {None}
        self.index = str(folder / LIST_NAME) if listed else None
        self._list: WholeFile | None = None
        if listed and _PATH_KEY in self._others:
            raise PackError(
                f"{dataset.path} has a field {_PATH_KEY!r}, which is also the name of the "
                f"column of image paths in {LIST_NAME}: it cannot be exported"
            )

    def make(self, row: int, hold: Callable[[int], None]) -> Made:
        """Writes the files of a row, and makes its line of the list.

        `hold` is called with the bytes that will be in memory.
        """
        data, suffix = image_file(self._dataset, self._field, row, hold)
        values = self._dataset.gather_all(list(self._others), np.array([row]))
        stem = f"{row:0{self._digits}}"
        line: dict[str, Any] = {}
        if self._class_field is not None:
            label = int(values[self._class_field][0])
            stem = f"{self._class_folders.get(label, label)}/{stem}"
            self._make_class_folder(self._at(stem).parent)
        line[_PATH_KEY] = stem + suffix
        self._new(stem + suffix, data)
        for name, kind in self._others.items():
            line[name] = self._value(name, kind, values[name][0], stem)
        return Made(line, 1, len(data))

    def take(self, data: Any) -> None:
        """Takes what `make` made, in the order of the rows: a line of the list."""
        if self.index is None:
            return
        if self._list is None:
            self._list = WholeFile(self.index)
        self._list.file.write(json.dumps(data).encode() + b"\n")

    def finish(self) -> None:
        """Finishes the list."""
        if self._list is not None:
            self._list.finish()

    def discard(self) -> None:
        """Deletes a list that is not finished."""
        if self._list is not None:
            self._list.discard()

    def _value(self, name: str, kind: Any, value: Any, stem: str) -> Any:
        """Returns a field as it is in the list of samples."""
        if isinstance(kind, (Array, Tokens, Bytes)):
            ending = "bin" if isinstance(kind, Bytes) else "npy"
            path = f"{stem}.{self._file_names[name]}.{ending}"
            self._new(path, value if isinstance(kind, Bytes) else npy_bytes(value))
            return path
        if name == self._class_field:
            classes = dict(enumerate(self._dataset.classes or ()))
            return classes.get(int(value), int(value))
        return value.item() if isinstance(kind, Scalar) else value

    def _new(self, path: str, data: bytes) -> None:
        """Writes a file, and replaces one that is there."""
        with open(self._at(path), "wb", opener=new_file) as file:
            file.write(data)

    def _at(self, path: str) -> Path:
        """Returns the path of a file. Its name is encoded as UTF-8, even if the locale is C."""
        return self._folder / os.fsdecode(path.encode("utf-8", "surrogateescape"))

    def _make_class_folder(self, path: Path) -> None:
        """Creates a folder if there is none; refuses a link to another folder."""
        path.mkdir(exist_ok=True)
        if path.is_symlink():
            raise PackError(f"{path} is a link: delete it, or choose another folder")


def _classes(schema: Schema) -> tuple[str | None, dict[int, str]]:
    """Returns the field of class numbers and the folder of each class, if there are classes."""
    classes = schema.classes or () if schema.class_field else ()
    return schema.class_field, dict(enumerate(_file_names(classes)))


def _file_names(texts: Iterable[str]) -> list[str]:
    """Returns a unique name for the files or folder of each text, other than `LIST_NAME`."""
    names = {LIST_NAME: None}  # a dict keeps the order
    for text in texts:
        name = _file_name(text)
        while name in names:
            name += "_"
        names[name] = None
    return list(names)[1:]


def _file_name(text: str) -> str:
    """Returns text as the name of one file that lies in its folder."""
    name = text.replace("/", "_").replace("\0", "_")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # halves of surrogate pairs
        name = name.encode("utf-8", "replace").decode()
    return f"_{name}" if name in ("", ".", "..") else name


# --- Tars -----------------------------------------------------------------------------------------


class TarExporter:
    """Writes rows with all fields to tars, in order; called as `FolderExporter` is.

    Args:
        dataset: The dataset.
        images: The image fields to write; all if there are none.
        folder: The folder of the tars.
        tar_bytes: The row that reaches this size is the last of its tar.

    Attributes:
        count: The number of tars that are finished.
    """

    counted = "samples"

    def __init__(
        self, dataset: Dataset, images: Sequence[str], folder: Path, tar_bytes: int
    ) -> None:
        self.count = 0
        self._dataset = dataset
        wanted = {
            name: kind
            for name, kind in dataset.schema.fields.items()
            if not isinstance(kind, Image) or not images or name in images
        }
        self._has_keys = isinstance(wanted.get(KEY_FIELD), Text)
        self._extensions = extensions(
            {name: kind for name, kind in wanted.items() if name != KEY_FIELD}
        )
        if not self._extensions:
            raise PackError(f"{dataset.path} has no fields to export other than {KEY_FIELD}")
        self._others = [name for name, kind in wanted.items() if not isinstance(kind, Image)]
        self._digits = digits_of(len(dataset))
        self._folder = folder
        self._tar_bytes = tar_bytes
        self._nbytes = 0
        self._last_key: str | None = None
        self._file: WholeFile | None = None
        self._tar: tarfile.TarFile | None = None

    def make(self, row: int, hold: Callable[[int], None]) -> Made:
        """Returns a row's key, or None without one that can be used, and (extension, bytes)."""
        values = self._dataset.gather_all(self._others, np.array([row]))
        found = []
        images = image_bytes = 0
        for name, (prefix, ending) in self._extensions.items():
            kind = self._dataset.schema.fields[name]
            if isinstance(kind, Image):
                data, suffix = image_file(self._dataset, name, row, hold)
                ending = suffix[1:]
                images, image_bytes = images + 1, image_bytes + len(data)
            else:
                data = _encoded(kind, ending, values[name][0])
            found.append((f"{prefix}.{ending}" if prefix else ending, data))
        key = values[KEY_FIELD][0] if self._has_keys else None
        usable = key is not None and _is_name(key)
        nbytes = sum(len(data) for _, data in found)
        return Made((key if usable else None, row, found), images, image_bytes, nbytes)

    def take(self, data: Any) -> None:
        """Adds a sample, and ends the tar if it is large enough."""
        key, row, files = data
        # Readers treat consecutive members with the same key as one sample.
        if key is None or key == self._last_key:
            key = f"{row:0{self._digits}}"
            key += "_" * (key == self._last_key)
        if self._tar is None:
            self._file = WholeFile(self._folder / f"{self.count:06d}.tar")
            # The PAX format stores names of any length, in UTF-8.
            self._tar = tarfile.open(  # noqa: SIM115 - closed by _end()
                fileobj=self._file.file, mode="w", format=tarfile.PAX_FORMAT
            )
        for extension, content in files:
            member = tarfile.TarInfo(f"{key}.{extension}")  # owner, group and time are 0
            member.size = len(content)
            self._tar.addfile(member, io.BytesIO(content))
            self._nbytes += len(content) + -len(content) % tarfile.BLOCKSIZE + tarfile.BLOCKSIZE
        # It keeps them for a reader; typeshed has no name for that.
        self._tar.members = []  # type: ignore[attr-defined]
        self._last_key = key
        if self._nbytes >= self._tar_bytes:
            self._end()

    def finish(self) -> None:
        """Finishes the last tar, and deletes those of an earlier export that were not replaced."""
        self._end()
        for name in os.listdir(self._folder):
            if _OWN_NAME.fullmatch(name) and int(name[:-4]) >= self.count:
                (self._folder / name).unlink()
        flush_folder(self._folder)

    def discard(self) -> None:
        """Deletes the current tar."""
        if self._file is not None:
            self._file.discard()

    def _end(self) -> None:
        """Finishes the current tar."""
        if self._tar is None or self._file is None:
            return
        self._tar.close()
        self._file.finish()
        self._tar = self._file = None
        self._nbytes = 0
        self.count += 1


def extensions(fields: dict[str, Field]) -> dict[str, tuple[str, str]]:
    """Returns the extension of each field: the part before its last dot, and the rest.

    That of an image is "image", because the real one depends on the row.
    """
    chosen: dict[str, tuple[str, str]] = {}
    for name, kind in fields.items():
        own = _own_extension(name, kind)
        if own is not None and own not in chosen.values():
            chosen[name] = own
    endings = [_ending(kind) for name, kind in fields.items() if name not in chosen]
    for name, kind in fields.items():
        if name in chosen:
            continue
        ending = _ending(kind)
        prefix = ""
        if endings.count(ending) > 1 or ("", ending) in chosen.values():
            prefix = re.sub(r"[/.\0]", "_", name).lower()
            while (prefix, ending) in chosen.values():
                prefix += "_"
        chosen[name] = prefix, ending
    return {name: chosen[name] for name in fields}


def _own_extension(name: str, kind: Field) -> tuple[str, str] | None:
    """Returns a field's name as an extension ("seg.png" for "seg_png") if it fits the field."""
    if name in CLASS_FIELDS and is_integer(kind):
        return "", "cls"
    prefix, _, last = name.lower().partition(";")[0].rpartition("_")
    holds = category(last)
    if isinstance(kind, Image):
        return (prefix, _IMAGE) if holds == "image" else None
    fits = {"array"}
    if isinstance(kind, Scalar):
        fits |= {"json"} | ({"int"} if "int" in kind.dtype else set())
    elif isinstance(kind, Text):
        fits = {"text", "json"}
    elif not isinstance(kind, (Array, Tokens)):
        fits = {"bytes"}
    odd = not last or last == "gz" or "/" in last or "\0" in name or "/" in prefix
    return (prefix, last) if holds in fits and not odd else None


def _ending(kind: Field) -> str:
    if isinstance(kind, Image):
        return _IMAGE
    if isinstance(kind, Scalar):
        return "cls" if "int" in kind.dtype else "json"
    if isinstance(kind, (Array, Tokens)):
        return "npy"
    return "txt" if isinstance(kind, Text) else "bin"


def _encoded(kind: Field, ending: str, value: Any) -> bytes:
    if ending == "npy":
        return npy_bytes(value)
    if isinstance(kind, Scalar):
        number = value.item()
        return (str(number) if category(ending) == "int" else json.dumps(number)).encode()
    return value.encode("utf-8", "surrogateescape") if isinstance(kind, Text) else bytes(value)


def _is_name(key: str) -> bool:
    """Returns whether a key can be used in a tar: it is read back unchanged, below the folder."""
    inside = not key.startswith("/") and ".." not in key.split("/")
    return inside and "\0" not in key and split_name(f"{key}.x") == (key, "x")
