"""Files that only packing reads: lists of images in CSV and JSONL, and folders of NumPy's files."""

from __future__ import annotations

import csv
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from fastio.errors import PackError, SampleError, SchemaError, SourceNotFound
from fastio.pack.items import ImageFile, Item, Source, source_of_rows
from fastio.runtime.files import only_files
from fastio.runtime.memory import MAX_UNZIPPED_BYTES
from fastio.schema import (
    ARRAY_DTYPES,
    CLASS_FIELDS,
    DTYPES,
    Array,
    Field,
    Image,
    Scalar,
    Schema,
    Text,
)
from fastio.sources import AUDIO_EXTENSIONS, IMG_EXTENSIONS, FolderDataset
from fastio.sources.folder import flat_files, folder_extension
from fastio.sources.named_files import NamedFiles
from fastio.sources.npy import read_header

LIST_SUFFIXES = (".csv", ".jsonl")
# Columns that may hold the images' paths: the first of these that is there.
PATH_COLUMNS = ("path", "image", "file", "filename")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf)", re.I)
# 007 is a name, of which a number would not keep the zeros.
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_INT64 = range(-(2**63), 2**63)
# The kinds of values that a number of a dtype may have.
_DTYPES = {"int64": {"int"}, "float64": {"int", "float"}, "bool": {"bool"}}
_TRUTH = {"true": True, "false": False, "1": True, "0": False}

ARRAY_EXTENSIONS = (".npy", ".npz")
ARRAY = "array"
LABEL = "label"

_MOST_DEFLATED = 1032  # bytes that zip makes of one, at most


# --- Lists ----------------------------------------------------------------------------------------


def list_source(
    path: str, schema: Schema | None, roots: Iterable[str | os.PathLike[str]] | None = None
) -> Source:
    """Returns the samples of a list of image files: one per line, with the images as the files are.

    The list is read line by line: once to find out what its columns hold, and once to pack.

    Args:
        path: A CSV file with a header, or a file of JSON objects, one per line.
        schema: The schema to use instead of one derived from the list.
        roots: Folders, besides the list's own, in which the images may lie.

    Raises:
        PackError: It lists nothing.
        SchemaError: It has no column of paths, or a line does not fit the others.
    """
    folder = os.path.dirname(path)
    columns, count = _surveyed(path)
    wanted = schema or _inferred(path, columns)
    files = NamedFiles(folder or ".", roots)
    converters = [_converter(path, name, wanted, columns, files) for name in wanted.fields]

    def items(start: int) -> Iterator[Item]:
        return (
            item(position, line, record)
            for position, (line, record) in enumerate(_records(path))
            if position >= start
        )

    def item(position: int, line: int, record: dict[str, Any]) -> Item:
        where = f"{path} line {line}"
        key = json.dumps(list(record.values()))
        try:
            values = [convert(record) for convert in converters]
        except SchemaError as error:
            named = SchemaError(f"{where}: {error}")
            named.__cause__ = error
            return Item(position, where, (), key, named)
        paths = [value.path for value in values if isinstance(value, ImageFile)]
        return Item(position, os.path.join(folder, paths[0]) if paths else where, values, key)

    def pick(rows: Sequence[int]) -> Iterator[Item]:
        wanted_rows = set(rows)
        found = {item.position: item for item in items(0) if item.position in wanted_rows}
        return (found[row] for row in rows if row in found)

    return Source(os.path.basename(os.path.abspath(path)), wanted, count, True, items, pick)


@dataclass
class _Column:
    """What a column holds.

    Attributes:
        kinds: The kinds of its values, and where each was first seen.
        words: The values of a column of classes.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)


def _surveyed(path: str) -> tuple[dict[str, _Column], int]:
    """Returns what the columns of a list hold, and the number of its lines."""
    columns: dict[str, _Column] = {}
    count = 0
    kind_of = _cell_kind if _is_csv(path) else _value_kind
    for line, record in _records(path):
        where = f"{path} line {line}"
        for name, value in record.items():
            if value is None:
                raise SchemaError(f"{where}: {name!r} is null, and fastio does not store nulls")
            column = columns.setdefault(name, _Column())
            column.kinds.setdefault(kind_of(value), where)
            if name in CLASS_FIELDS:
                column.words.add(_text(value))
        count += 1
    if not count:
        raise PackError(f"there is nothing to pack: {path} lists no images")
    return columns, count


def _field(name: str, column: _Column) -> Field:
    """Returns a column's field: a Scalar if all its values are numbers, or all true or false."""
    kinds = column.kinds.keys() - {"empty"}
    dtype = next((dtype for dtype, those in _DTYPES.items() if kinds and kinds <= those), None)
    if dtype is None:
        return Text()
    if "empty" in column.kinds:
        raise SchemaError(
            f"{column.kinds['empty']}: {name!r} is empty, while the column holds {dtype} "
            "elsewhere; fastio does not store nulls: fill the cell in, or leave the line out"
        )
    return Scalar(dtype)


def _inferred(path: str, columns: dict[str, _Column]) -> Schema:
    """Returns the schema of the fields that a list's columns become."""
    path_column = _path_column(path, columns)
    fields: dict[str, Field] = {}
    classes = None
    for name, column in columns.items():
        if name == path_column:
            fields["image"] = Image()
            continue
        if name == "image":
            raise SchemaError(
                f"{path} has both a column {path_column!r}, whose images are to be the "
                "field 'image', and a column 'image': rename one"
            )
        fields[name] = _field(name, column)
        if isinstance(fields[name], Text) and name in CLASS_FIELDS and classes is None:
            if "empty" in column.kinds:
                raise SchemaError(f"{column.kinds['empty']}: the {name} is empty")
            fields[name] = Scalar("int64")
            classes = tuple(sorted(column.words))  # their positions are the class numbers
    return Schema(fields, "tuple" if _is_csv(path) else "dict", classes)


def _converter(
    path: str, name: str, schema: Schema, columns: dict[str, _Column], files: NamedFiles
) -> Callable[[dict[str, Any]], Any]:
    """Returns a function that takes the value of a field from a record."""
    kind = schema.fields[name]
    if isinstance(kind, Image):
        column = name if name in columns else _path_column(path, columns)
        return lambda record: ImageFile(str(record[column]), files)
    if name not in columns:
        raise SchemaError(f"{path} has no column {name!r}; it has {', '.join(columns)}")
    if isinstance(kind, Text):
        return lambda record: _text(record[name])
    if not isinstance(kind, Scalar):
        raise SchemaError(f"field {name!r}: a list supports only Image, Scalar and Text")
    if schema.classes and name in CLASS_FIELDS and "text" in columns[name].kinds:
        numbers = {word: number for number, word in enumerate(schema.classes)}
        return lambda record: _class_number(numbers, record[name])
    dtype = kind.dtype
    return lambda record: _number(dtype, name, record[name])


def is_image_list(path: str) -> bool:
    """Returns whether a CSV or JSONL file lists images, or has nothing readable at all."""
    try:
        _, first = next(_records(path), (0, None))
    except (SchemaError, SourceNotFound):
        return True
    return first is None or any(name in first for name in PATH_COLUMNS)


def _records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers and records of a list, all with the same columns in the same order."""
    try:
        with open(path, encoding="utf-8-sig", newline="", opener=only_files) as file:
            lines = _csv_records(path, file) if _is_csv(path) else _json_records(path, file)
            yield from lines
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path} is not UTF-8: {error}") from error
    except csv.Error as error:
        raise SchemaError(f"{path} is not CSV: {error}") from error
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error}") from error


def _csv_records(path: str, file: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(file, skipinitialspace=True, strict=True)
    header = [name.strip() for name in next(reader, [])]
    if len(set(header)) != len(header):
        raise SchemaError(f"{path}: two columns have the same name: {', '.join(header)}")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise SchemaError(
                f"{path} line {reader.line_num}: {len(cells)} cells, but the header has "
                f"{len(header)} ({', '.join(header)})"
            )
        yield reader.line_num, dict(zip(header, cells, strict=True))


def _json_records(path: str, file: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    names: list[str] = []
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"{path} line {line} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise SchemaError(
                f"{path} line {line}: expected a JSON object, got {text.strip()[:80]}"
            )
        names = names or list(record)
        if set(record) != set(names):
            raise SchemaError(
                f"{path} line {line} has the keys {', '.join(record)}; the first line has "
                f"{', '.join(names)}"
            )
        yield line, {name: record[name] for name in names}


def _path_column(path: str, names: Iterable[str]) -> str:
    for name in PATH_COLUMNS:
        if name in names:
            return name
    raise SchemaError(
        f"{path} has no column of image paths: one of {', '.join(PATH_COLUMNS)} is needed, it has "
        f"{', '.join(names)}"
    )


def _is_csv(path: str) -> bool:
    return path.lower().endswith(".csv")


def _cell_kind(text: str) -> str:
    """Returns what a CSV cell looks like: "empty", "text", "int" or "float"."""
    if not text:
        return "empty"
    if _LEADING_ZERO.match(text):
        return "text"
    if _INTEGER.fullmatch(text):
        return "int" if int(text) in _INT64 else "text"
    return "float" if _NUMBER.fullmatch(text) else "text"


def _value_kind(value: Any) -> str:
    """Returns what a JSON value is: "bool", "int", "float" or "text"."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if value in _INT64 else "text"
    return "float" if isinstance(value, float) else "text"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _class_number(numbers: dict[str, int], value: Any) -> int:
    word = _text(value)
    if word not in numbers:
        raise SchemaError(f"{word!r} is not one of the schema's {len(numbers)} classes")
    return numbers[word]


def _number(dtype: str, name: str, value: Any) -> Any:
    """Returns a value as a Python number; whether it fits the dtype is checked later."""
    if not isinstance(value, str):
        return value
    try:
        if dtype == "bool":
            return _TRUTH[value.strip().lower()]
        return float(value) if dtype.startswith("float") else int(value)
    except (KeyError, ValueError) as error:
        raise SchemaError(f"{name!r} is {value!r}, expected {dtype}") from error


# --- Folders of NumPy's files ---------------------------------------------------------------------


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
