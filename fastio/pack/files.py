"""Folders of NumPy's files, which only packing reads."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from fastio.errors import PackError, SampleError, SchemaError, SourceNotFound
from fastio.pack.items import Item, Source, source_of_rows
from fastio.runtime.files import only_files
from fastio.runtime.memory import MAX_UNZIPPED_BYTES
from fastio.schema import ARRAY_DTYPES, DTYPES, Array, Field, Scalar, Schema
from fastio.sources import AUDIO_EXTENSIONS, IMG_EXTENSIONS, FolderDataset
from fastio.sources.folder import flat_files, folder_extension
from fastio.sources.npy import read_header

ARRAY_EXTENSIONS = (".npy", ".npz")
ARRAY = "array"
LABEL = "label"

_MOST_DEFLATED = 1032  # bytes that zip makes of one, at most


def open_array_folder(
    path: Any, schema: Schema | None, max_unzipped_bytes: int | None
) -> Source | None:
    """Returns a folder as a source if its first file of samples is one of NumPy's, else None.

    Raises:
        SourceNotFound: A class folder has no such files.
        SchemaError: The arrays' types or names differ.
        PackError: A schema is given.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.path.isdir(path):
        return None
    path = os.fspath(path)
    if folder_extension(path, [ARRAY_EXTENSIONS, IMG_EXTENSIONS, AUDIO_EXTENSIONS]) != 0:
        return None
    if schema is not None:
        raise PackError(
            f"schema cannot be used with {path}: its fields are determined by its files"
        )
    most = MAX_UNZIPPED_BYTES if max_unzipped_bytes is None else max_unzipped_bytes
    names = flat_files(path, ARRAY_EXTENSIONS)
    if names:
        paths = [os.path.join(path, name) for name in names]
        return _arrays_of(path, paths, np.zeros(len(paths), np.int64), None, most)
    folder = FolderDataset(path, ARRAY_EXTENSIONS)
    return _arrays_of(path, list(folder.paths), folder.labels, folder.classes, most)


_Header = tuple[str, tuple[int, ...]]  # dtype and shape of an array in a file


def _arrays_of(
    path: str, paths: list[str], labels: Any, classes: tuple[str, ...] | None, most: int
) -> Source:
    """Returns files of arrays as a source; with classes, samples have a field `label` too."""
    endings = {os.path.splitext(name)[1].lower() for name in paths}
    if len(endings) > 1:
        raise SchemaError(f"{path} has both .npy and .npz files: pack them separately")
    named = endings == {".npz"}
    fields = _survey(paths)
    if classes is not None:
        if LABEL in fields:
            raise SchemaError(f"{path} has class folders, and arrays named {LABEL!r} too")
        fields[LABEL] = Scalar("int64")
    structure = "dict" if named else "tuple" if classes is not None else "single"
    members = [name for name in fields if classes is None or name != LABEL]
    schema = Schema(fields, structure, classes)  # type: ignore[arg-type]
    source = os.path.basename(os.path.abspath(path))

    def item(row: int) -> Item:
        where = paths[row]
        try:
            status = os.stat(where)
            values = _members(where, members, most) if named else [_array(where)]
        except Exception as error:  # MemoryError and RecursionError are a file's own too
            return Item(row, where, (), where, SampleError(source, row, where, error))
        if classes is not None:
            values.append(int(labels[row]))
        return Item(row, where, values, f"{where} {status.st_size} {status.st_mtime_ns}")

    return source_of_rows(source, schema, len(paths), lambda rows: map(item, rows))


def _array(path: str) -> Any:
    """Returns the array of an .npy file."""
    with open(path, "rb", opener=only_files) as file:
        # Checks that the array fits the size of the file, before `load` allocates its memory.
        read_header(file, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return np.load(file, allow_pickle=False)


def _members(path: str, names: Sequence[str], max_unzipped_bytes: int) -> list[Any]:
    """Returns the arrays of an .npz file that have these names; ValueError if it has others."""
    _headers(path)  # which compares them with the bytes that there are
    with open(path, "rb", opener=only_files) as file, np.load(file, allow_pickle=False) as arrays:
        nbytes = sum(about.file_size for about in arrays.zip.infolist())
        if nbytes > max_unzipped_bytes:
            raise ValueError(
                f"its arrays take {nbytes:,} bytes, more than max_unzipped_bytes="
                f"{max_unzipped_bytes:,}. If you trust the data, pass a larger "
                "max_unzipped_bytes to fastio.pack"
            )
        if set(arrays.files) != set(names):
            raise ValueError(
                f"it has the arrays {', '.join(arrays.files)}, and the first file "
                f"{', '.join(names)}"
            )
        return [arrays[name] for name in names]


def _survey(paths: Sequence[str]) -> dict[str, Field]:
    """Returns the fields that hold the arrays of all files, from the headers of readable ones."""
    found: dict[str, list[tuple[str, _Header]]] = {}
    first: Exception | None = None
    for path in paths:
        try:
            for name, header in _headers(path).items():
                found.setdefault(name, []).append((path, header))
        except Exception as error:  # as in `_arrays_of`
            # A file that cannot be read is a bad sample, which packing reports.
            first = first or error
    if not found:
        raise SourceNotFound(f"none of {len(paths)} files can be read: {first}") from first
    return {name: _array_field(name, headers) for name, headers in found.items()}


def _headers(path: str) -> dict[str, _Header]:
    if path.lower().endswith(".npy"):
        with open(path, "rb", opener=only_files) as file:
            return {ARRAY: _header(file, os.fstat(file.fileno()).st_size)}
    headers = {}
    with open(path, "rb", opener=only_files) as file, zipfile.ZipFile(file) as archive:
        for about in archive.infolist():
            if about.file_size > _MOST_DEFLATED * about.compress_size + _MOST_DEFLATED:
                raise ValueError(
                    f"the archive lists {about.filename} with {about.file_size:,} bytes, "
                    f"compressed to {about.compress_size:,}, which is not possible"
                )
            with archive.open(about) as member:
                headers[about.filename.removesuffix(".npy")] = _header(member, about.file_size)
    return headers


def _header(file: IO[bytes], nbytes: int) -> _Header:
    shape, _, dtype = read_header(file, nbytes)
    return dtype.name, shape


def _array_field(name: str, headers: Sequence[tuple[str, _Header]]) -> Field:
    """Returns the field that holds arrays of all shapes."""
    where, (dtype, shape) = headers[0]
    for path, (other, _) in headers:
        if other != dtype:
            raise SchemaError(
                f"the array {name!r} is {dtype} in {where} and {other} in {path}: "
                "convert them to one type"
            )
    if dtype not in ARRAY_DTYPES:
        raise SchemaError(f"the array {name!r} of {where} is {dtype}, which fastio does not store")
    shapes = [header[1] for _, header in headers]
    if len({len(each) for each in shapes}) > 1:
        return Array(dtype)
    if not shape:
        return Scalar(dtype) if dtype in DTYPES else Array(dtype)
    lengths = [set(along) for along in zip(*shapes, strict=True)]
    same = [along.pop() if len(along) == 1 and along != {0} else None for along in lengths]
    return Array(dtype, tuple(same))
