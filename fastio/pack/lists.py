"""CSV and JSONL lists of image files and what belongs to them."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fastio.errors import PackError, SchemaError, SourceNotFound
from fastio.pack.items import ImageFile, Item, Source
from fastio.runtime.files import only_files
from fastio.schema import Field, Image, Scalar, Schema, Text
from fastio.sources.named_files import NamedFiles

LIST_SUFFIXES = (".csv", ".jsonl")
# Columns that may hold the images' paths: the first of these that is there.
PATH_COLUMNS = ("path", "image", "file", "filename")
# Columns whose words become class numbers.
CLASS_COLUMNS = ("label", "class")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf)", re.I)
# 007 is a name, of which a number would not keep the zeros.
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_INT64 = range(-(2**63), 2**63)
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


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


def _surveyed(path: str) -> tuple[dict[str, _Column], int]:
    """Returns what the columns of a list hold, and the number of its lines."""
    columns: dict[str, _Column] = {}
    count = 0
    for line, record in _records(path):
        if not columns:
            kind_of = _cell_kind if _is_csv(path) else _value_kind
            columns = {name: _Column(name, kind_of) for name in record}
        for name, value in record.items():
            columns[name].observe(value, f"{path} line {line}")
        count += 1
    if not count:
        raise PackError(f"there is nothing to pack: {path} lists no images")
    return columns, count


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
        fields[name] = column.field()
        if isinstance(fields[name], Text) and name in CLASS_COLUMNS and classes is None:
            fields[name] = Scalar("int64")
            classes = column.classes()
    return Schema(fields, "tuple" if _is_csv(path) else "dict", classes)


def _converter(
    path: str, name: str, schema: Schema, columns: dict[str, _Column], files: NamedFiles
) -> Callable[[dict[str, Any]], Any]:
    """Returns a function that takes the value of a field from a record."""
    field = schema.fields[name]
    if isinstance(field, Image):
        column = name if name in columns else _path_column(path, columns)
        return lambda record: ImageFile(str(record[column]), files)
    if name not in columns:
        raise SchemaError(f"{path} has no column {name!r}; it has {', '.join(columns)}")
    if isinstance(field, Text):
        return lambda record: _text(record[name])
    if not isinstance(field, Scalar):
        raise SchemaError(f"field {name!r}: a list supports only Image, Scalar and Text")
    if schema.classes and name in CLASS_COLUMNS and columns[name].is_words:
        numbers = {word: number for number, word in enumerate(schema.classes)}
        return lambda record: _class_number(numbers, record[name])
    dtype = field.dtype
    return lambda record: _number(dtype, name, record[name])


def is_image_list(path: str) -> bool:
    """Returns whether a CSV or JSONL file lists images, or has nothing readable at all."""
    try:
        _, first = next(_records(path), (0, None))
    except (SchemaError, SourceNotFound):
        return True
    return first is None or any(name in first for name in PATH_COLUMNS)


class _Column:
    """Finds out what a column holds, value by value."""

    def __init__(self, name: str, kind_of: Callable[[Any], str]) -> None:
        self._name = name
        self._kind_of = kind_of
        self._kinds: set[str] = set()
        self._first_empty = ""
        self._words: set[str] = set()

    def observe(self, value: Any, where: str) -> None:
        """Takes one value into account."""
        if value is None:
            raise SchemaError(f"{where}: {self._name!r} is null, and fastio does not store nulls")
        kind = self._kind_of(value)
        if kind == "empty" and not self._first_empty:
            self._first_empty = where
        self._kinds.add(kind)
        if self._name in CLASS_COLUMNS:
            self._words.add(_text(value))

    @property
    def is_words(self) -> bool:
        """Whether it holds anything but numbers."""
        return "text" in self._kinds

    def field(self) -> Field:
        """Returns its field: a Scalar if all its values are numbers, or all true or false."""
        kinds = self._kinds - {"empty"}
        dtype = None
        if kinds == {"int"}:
            dtype = "int64"
        elif kinds and kinds <= {"int", "float"}:
            dtype = "float64"
        elif kinds == {"bool"}:
            dtype = "bool"
        if dtype is None:
            return Text()
        if self._first_empty:
            raise SchemaError(
                f"{self._first_empty}: {self._name!r} is empty, while the column holds {dtype} "
                "elsewhere; fastio does not store nulls: fill the cell in, or leave the line "
                "out"
            )
        return Scalar(dtype)

    def classes(self) -> tuple[str, ...]:
        """Returns the words of the column, sorted, whose positions are the class numbers."""
        if self._first_empty:
            raise SchemaError(f"{self._first_empty}: the {self._name} is empty")
        return tuple(sorted(self._words))


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
