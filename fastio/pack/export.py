"""fastio.export: a dataset's images as files again."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastio.errors import PackError
from fastio.pack.api import parse_size
from fastio.pack.export_rows import CLASS_FIELDS, digits_of, image_file, made_in_order
from fastio.pack.journal import writing_to
from fastio.pack.tar_export import TarExporter, export_tars
from fastio.packed import Dataset
from fastio.runtime.cores import available_cores
from fastio.runtime.files import new_file, remove_leftovers, whole_file
from fastio.schema import Array, Bytes, Image, Scalar, Schema
from fastio.sources import open as open_data

LIST_NAME = "samples.jsonl"
_PATH_KEY = "path"
DEFAULT_TAR_SIZE = "256MiB"


@dataclass(frozen=True)
class ExportReport:
    """The result of `export`.

    Attributes:
        images: number of images written.
        bytes: total size of the images.
        index: path of the list of samples; None if the folders' names hold all information.
        seconds: duration.
        tars: number of tars written; 0 for files in folders.
    """

    images: int
    bytes: int
    index: str | None
    seconds: float
    tars: int = 0


def export(
    dataset: Dataset | str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    to: Literal["folder", "webdataset"] = "folder",
    shard_size: int | str = DEFAULT_TAR_SIZE,
    field: str | None = None,
    rows: slice | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> ExportReport:
    """Writes a packed dataset's images to files, or the whole dataset to WebDataset tars.

    In a folder, each image becomes `dst/CLASS/ROW.jpg`, or `dst/ROW.jpg` if the samples have no
    class names; ROW is its number in the dataset. Files that were packed unchanged are identical to
    the originals. Images that are stored as blocks become JPEGs with the same coefficients,
    quantization tables and metadata, which decode to the same pixels. Stored pixels become PNG.

    If samples have more than an image and a class, `dst/samples.jsonl` has one line per sample:
    the image's `path` and the other fields. `fastio pack` reads this list. Classes are given by
    name. Values of Array and Bytes fields are files, `CLASS/ROW.FIELD.npy` and
    `CLASS/ROW.FIELD.bin`, whose paths are in the list.

    With "webdataset", samples become members of `dst/000000.tar`, `dst/000001.tar`, ... with all
    fields. A sample's key is its field `__key__` if that can be a name in a tar, or else ROW. The
    extension of a field is given by its type: jpg (png, ...), cls (an integer), json (other
    numbers), txt, npy, bin. If the field's own name is such an extension, with underscores for
    dots, or if several fields have one type, the name is used (`left.jpg`). Class numbers are
    written, class names are not. The same rows give the same bytes.

    `fastio export` has the same options, and shows these descriptions as its help.

    Args:
        dataset: A packed dataset, its folder or its URL.
        dst: Folder to write to.
        to: Output: 'folder' writes the images to one folder per class and other fields to a list;
            'webdataset' writes tars with all fields.
        shard_size: Size of a tar in bytes, or as text such as 256MiB or 1GB. The row that reaches
            it is the last of its tar.
        field: Name of the image field. Needed only for a folder, if there are several.
        rows: Rows to export (default: all).
        overwrite: Write to the folder even if it is not empty. Files with the same names are
            replaced, and so are all tars that are named by a number. Other files are not touched.
        workers: Number of threads (default: all cores that this process may use).
        progress: Whether to show a progress bar on stderr.

    Returns:
        What was written.

    Raises:
        DatasetNotFound, ManifestInvalid: There is no dataset.
        PackError: There are no rows or no images to export, or `dst` is not empty or cannot be
            written.
        ImageError, ShardCorrupt: An image, or a whole shard, is damaged. What was written before
            stays.
    """
    start = time.monotonic()
    index: Path | None = None
    if workers is not None and workers < 1:
        raise PackError(f"workers must be at least 1, got {workers}")
    if to not in ("folder", "webdataset"):
        raise PackError(f"to must be 'folder' or 'webdataset', got {to!r}")
    tar_bytes = parse_size(shard_size)
    opened = open_data(dataset)
    try:
        if opened.packed is not opened:
            raise PackError(f"{opened.path} is not a packed dataset: only these can be exported")
        numbers = range(len(opened))[rows or slice(None)]
        if not numbers:
            raise PackError(
                f"rows {_written_slice(rows)} select nothing; {opened.path} has rows 0 to "
                f"{len(opened) - 1}"
            )
        pool = workers or available_cores()
        with writing_to(Path(dst)):
            if to == "webdataset":
                tars = TarExporter(opened, () if field is None else (_image_field(opened, field),))
                _prepare(Path(dst), opened, overwrite)
                done = export_tars(tars, Path(dst), numbers, tar_bytes, pool, progress)
                images, nbytes, count = done
            else:
                exporter = _Exporter(opened, Path(dst), field)
                index = Path(dst, LIST_NAME) if exporter.listed else None
                _prepare(Path(dst), opened, overwrite)
                images, count = len(numbers), 0
                nbytes = _export(exporter, index, numbers, pool, progress)
    finally:
        if opened is not dataset:
            opened.close()
    listed = None if index is None else str(index)
    return ExportReport(images, nbytes, listed, time.monotonic() - start, count)


@dataclass(frozen=True)
class _Written:
    line: dict[str, Any]
    nbytes: int


class _Exporter:
    """Writes the files of single rows. Thread-safe."""

    def __init__(self, dataset: Dataset, folder: Path, field: str | None) -> None:
        self._dataset = dataset
        self._folder = folder
        self._field = _image_field(dataset, field)
        self._class_field, self._class_folders = _classes(dataset.schema)
        self._digits = digits_of(len(dataset))
        self._others = {
            name: kind
            for name, kind in dataset.schema.fields.items()
            if not isinstance(kind, Image)
        }
        self.listed = set(self._others) != {self._class_field} - {None}
        if self.listed and _PATH_KEY in self._others:
            raise PackError(
                f"{dataset.path} has a field {_PATH_KEY!r}, which is also the name of the "
                f"column of image paths in {LIST_NAME}: it cannot be exported"
            )

    def write(self, row: int, hold: Callable[[int], None]) -> _Written:
        """Writes the files of a row; `hold` is called with the bytes that will be in memory."""
        data, suffix = image_file(self._dataset, self._field, row, hold)
        values = self._dataset.gather_all(list(self._others), np.array([row]))
        stem = f"{row:0{self._digits}}"
        line: dict[str, Any] = {}
        if self._class_field is not None:
            label = int(values[self._class_field][0])
            stem = f"{self._class_folders.get(label, label)}/{stem}"
            self._make_class_folder((self._folder / stem).parent)
        line[_PATH_KEY] = stem + suffix
        self._new(stem + suffix, data)
        for name, kind in self._others.items():
            line[name] = self._value(name, kind, values[name][0], stem)
        return _Written(line, len(data))

    def _value(self, name: str, kind: Any, value: Any, stem: str) -> Any:
        """Returns a field as it is in the list of samples."""
        if isinstance(kind, Array):
            path = f"{stem}.{_file_name(name)}.npy"
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            self._new(path, file.getbuffer())
            return path
        if isinstance(kind, Bytes):
            path = f"{stem}.{_file_name(name)}.bin"
            self._new(path, value)
            return path
        if name == self._class_field:
            classes = dict(enumerate(self._dataset.classes or ()))
            return classes.get(int(value), int(value))
        return value.item() if isinstance(kind, Scalar) else value

    def _new(self, path: str, data: bytes | memoryview) -> None:
        """Writes a file, and replaces one that is there."""
        with open(self._folder / path, "wb", opener=new_file) as file:
            file.write(data)

    def _make_class_folder(self, path: Path) -> None:
        """Creates a folder if there is none; refuses a link to another folder."""
        path.mkdir(exist_ok=True)
        if path.is_symlink():
            raise PackError(f"{path} is a link: delete it, or choose another folder")


def _export(
    exporter: _Exporter, index: Path | None, rows: Sequence[int], workers: int, progress: bool
) -> int:
    """Writes the rows' files and their list, in order; returns the bytes of the images."""
    nbytes = 0
    units = "images" if progress else None
    with (
        made_in_order(exporter.write, lambda _: 0, rows, workers, units) as results,
        nullcontext() if index is None else whole_file(index) as file,
    ):
        for written in results:
            if file is not None:
                file.write(json.dumps(written.line).encode() + b"\n")
            nbytes += written.nbytes
    return nbytes


def _written_slice(rows: slice | None) -> str:
    """Returns a slice as it is written between brackets: "5:3"."""
    parts = () if rows is None else (rows.start, rows.stop)
    step = "" if rows is None or rows.step is None else f":{rows.step}"
    return ":".join("" if part is None else str(part) for part in parts) + step


def _prepare(folder: Path, dataset: Dataset, overwrite: bool) -> None:
    """Creates the folder to write to; refuses the dataset's own, and one that is not empty."""
    inside = Path(dataset.path).resolve()
    if inside in (folder.resolve(), *folder.resolve().parents):
        raise PackError(f"{folder} is the dataset itself or lies in it; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise PackError(f"{folder} is a file: give a folder to write to")
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    if not overwrite and next(folder.iterdir(), None) is not None:
        raise PackError(
            f"{folder} is not empty; choose another folder, or write to this one with overwrite "
            "(--overwrite)"
        )


def _image_field(dataset: Dataset, name: str | None) -> str:
    fields = dataset.schema.image_fields
    if not fields:
        raise PackError(f"{dataset.path} has no images to export")
    if name is None and len(fields) > 1:
        raise PackError(
            f"{dataset.path} has the image fields {', '.join(fields)}; choose one with field "
            "(--field)"
        )
    if name is not None and name not in fields:
        raise PackError(f"{dataset.path} has no image field {name!r}; it has {', '.join(fields)}")
    return name or fields[0]


def _classes(schema: Schema) -> tuple[str | None, dict[int, str]]:
    """Returns the field of class numbers and the folder of each class, if there are classes."""
    for name in CLASS_FIELDS:
        kind = schema.fields.get(name)
        if schema.classes and isinstance(kind, Scalar) and "int" in kind.dtype:
            return name, _folders(schema.classes)
    return None, {}


def _folders(classes: Sequence[str]) -> dict[int, str]:
    """Returns a folder name for each class: unique, and not the list's."""
    folders: dict[int, str] = {}
    taken = {LIST_NAME}
    for number, name in enumerate(classes):
        folder = _file_name(name)
        while folder in taken:
            folder += "_"
        taken.add(folder)
        folders[number] = folder
    return folders


def _file_name(text: str) -> str:
    """Returns text as the name of one file that lies in its folder."""
    name = text.replace("/", "_").replace("\0", "_")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # halves of surrogate pairs
        name = name.encode("utf-8", "replace").decode()
    return f"_{name}" if name in ("", ".", "..") else name
