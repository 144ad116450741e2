"""Lists of images in CSV and JSONL, which only packing reads."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from fastio.errors import PackError, SchemaError, SourceChanged, SourceNotFound
from fastio.pack.items import ImageFile, Item, Source
from fastio.pack.listed_urls import ListedObjects, UrlColumn
from fastio.runtime.files import only_files
from fastio.schema import CLASS_FIELDS, Field, Image, Scalar, Schema, Text
from fastio.sources.named_files import NamedFiles
from fastio.store import is_remote

LIST_SUFFIXES = (".csv", ".jsonl")
# Columns that may hold the images' paths: the first of these that is there.
PATH_COLUMNS = (
    "path",
    "image",
    "file",
    "filename",
    "filepath",  # OpenCLIP's
    "file_name",
    "file_path",
    "image_path",
)

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf)", re.I)
# 007 is a name, of which a number would not keep the zeros.
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_INT64 = range(-(2**63), 2**63)
# The kinds of values that a number of a dtype may have.
_DTYPES = {"int64": {"int"}, "float64": {"int", "float"}, "bool": {"bool"}}
_TRUTH = {"true": True, "false": False, "1": True, "0": False}

_MARK_EVERY = 1024  # samples


def list_source(
    path: str,
    schema: Schema | None,
    roots: Iterable[str | os.PathLike[str]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Returns the samples of a list of image files: one per line, with the images as the files are.

    The images are files of this machine, or objects behind URLs, which are read ahead.

    The list is read line by line: once to find out what its columns hold, and once to pack. The
    first time, the position of one line of each thousand is noted, so that units that are packed
    by themselves do not read the lines before them.

    Args:
        path: A CSV file with a header, or a file of JSON objects, one per line.
        schema: The schema to use instead of one derived from the list.
        roots: Folders, besides the list's own, in which the images may lie.
        storage_options: Options of the file system of URLs.

    Raises:
        PackError: It lists nothing.
        SchemaError: It has no column of paths, or a line does not fit the others.
        StoreError: The store of its URLs does not answer.
    """
    folder = os.path.dirname(path)
    of_images = ["image"] if schema is None else schema.image_fields
    columns, marks, count = _surveyed(path, of_images)
    wanted = schema or _inferred(path, columns)
    files = NamedFiles(folder or ".", roots)
    converters = [_converter(path, name, wanted, columns, files) for name in wanted.fields]
    remote = {
        place: column
        for place, (name, kind) in enumerate(wanted.fields.items())
        if isinstance(kind, Image)
        if columns[column := _image_column(path, name, columns)].urls.urls
    }
    urls = {column: columns[column].urls.urls for column in remote.values()}
    objects = ListedObjects(path, urls, storage_options) if remote else None

    def items(start: int) -> Iterator[Item]:
        found = unread(start)
        return found if objects is None else objects.filled(found, remote)

    def unread(start: int) -> Iterator[Item]:
        first, mark = marks.before(start)
        return (
            item(position, line, record)
            for position, (line, _, record) in enumerate(_records(path, mark), first)
            if position >= start
        )

    def item(position: int, line: int, record: dict[str, Any]) -> Item:
        where = f"{path} line {line}"
        # The key contains the whole line, because a sample with a corrected label is another
        # sample.
        key = json.dumps(list(record.values()))
        try:
            values = [convert(record) for convert in converters]
        except SchemaError as error:
            named = SchemaError(f"{where}: {error}")
            named.__cause__ = error
            return Item(position, where, (), key, named)
        if objects is not None:
            return Item(position, objects.name(next(iter(urls)), position), values, key)
        paths = [value.path for value in values if isinstance(value, ImageFile)]
        return Item(position, os.path.join(folder, paths[0]) if paths else where, values, key)

    def pick(rows: Sequence[int]) -> Iterator[Item]:
        wanted_rows = set(rows)
        found = {item.position: item for item in unread(0) if item.position in wanted_rows}
        picked = (found[row] for row in rows if row in found)
        return picked if objects is None else objects.filled(picked, remote)

    def named() -> Iterator[Item]:
        assert objects is not None
        return (objects.named(each, remote) for each in unread(0))

    name = os.path.basename(os.path.abspath(path))
    # Bad samples have no values, and the key of a file is that of its value.
    all_remote = objects is not None and len(remote) == len(wanted.image_fields)
    return Source(name, wanted, count, True, items, pick, named=named if all_remote else None)


@dataclass
class _Column:
    """What a column holds.

    Attributes:
        kinds: The kinds of its values, and where each was first seen.
        words: The values of a column of classes.
        urls: The values of a column of images, if they are URLs.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    urls: UrlColumn = field(default_factory=UrlColumn)


@dataclass(frozen=True)
class _Mark:
    """A place in a list, between two samples.

    Attributes:
        offset, line: The number of bytes and lines before it.
        names: The columns.
        stamp: The size of the file and the time of its last change, which it must have.
    """

    offset: int
    line: int
    names: Sequence[str]
    stamp: tuple[int, int]


class _Marks:
    """The place of every 1,024th sample of a list, except the first.

    Args:
        stamp: See `_Mark`.
    """

    def __init__(self, stamp: tuple[int, int]) -> None:
        self.names: Sequence[str] = ()
        self._stamp = stamp
        # Not a list of marks, which would take many times the memory.
        self._offsets, self._lines = array("q"), array("q")

    def add(self, offset: int, line: int) -> None:
        """Notes the next place."""
        self._offsets.append(offset)
        self._lines.append(line)

    def before(self, position: int) -> tuple[int, _Mark | None]:
        """Returns the last place before a sample: the number of the sample there, and the place."""
        number = min(position // _MARK_EVERY, len(self._offsets))
        if not number:
            return 0, None
        place = self._offsets[number - 1], self._lines[number - 1]
        return number * _MARK_EVERY, _Mark(*place, self.names, self._stamp)


def _surveyed(path: str, of_images: Sequence[str] = ()) -> tuple[dict[str, _Column], _Marks, int]:
    """Returns what the columns of a list hold, places in it, and the number of its samples.

    `of_images` has the names of the fields of images, whose columns may hold URLs.
    """
    columns: dict[str, _Column] = {}
    count = 0
    try:
        marks = _Marks(_stamp(os.stat(path)))
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error}") from error
    kind_of = _cell_kind if _is_csv(path) else _value_kind
    for line, end, record in _records(path):
        where = f"{path} line {line}"
        if not count:
            of_paths = next((name for name in PATH_COLUMNS if name in record), "")
            images = {name if name in record else of_paths for name in of_images}
        for name, value in record.items():
            if value is None:
                raise SchemaError(f"{where}: {name!r} is null, and fastio does not store nulls")
            column = columns.setdefault(name, _Column())
            column.kinds.setdefault(kind_of(value), where)
            if name in CLASS_FIELDS:
                column.words.add(_text(value))
            if name in images:
                column.urls.add(value, where)
        count += 1
        if count % _MARK_EVERY == 0:
            marks.add(end, line)
    if not count:
        raise PackError(f"there is nothing to pack: {path} lists no images")
    marks.names = list(columns)
    return columns, marks, count


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
        column = _image_column(path, name, columns)
        if columns[column].urls.urls:
            return lambda record: b""  # until its object is read
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


def list_file(source: Any) -> str | None:
    """Returns the path of a file that may be a list, by its name; None for other sources."""
    if not isinstance(source, (str, os.PathLike)) or is_remote(source):
        return None
    path = os.fspath(source)
    return path if path.lower().endswith(LIST_SUFFIXES) and os.path.isfile(path) else None


def lists_urls(source: Any) -> bool:
    """Returns whether a source is a list whose first line has a URL."""
    path = list_file(source)
    if path is None:
        return False
    try:
        *_, first = next(_records(path), (0, 0, dict[str, Any]()))
    except (SchemaError, SourceNotFound):
        return False  # packing it raises the error
    return any(isinstance(value, str) and is_remote(value) for value in first.values())


def is_image_list(path: str) -> bool:
    """Returns whether a CSV or JSONL file lists images, or has nothing readable at all."""
    try:
        *_, first = next(_records(path), (0, 0, None))
    except (SchemaError, SourceNotFound):
        return True
    return first is None or any(name in first for name in PATH_COLUMNS)


class _Lines:
    """The lines of a list, which counts them and their bytes."""

    def __init__(self, file: IO[bytes], mark: _Mark | None) -> None:
        self.offset = self.count = 0
        if mark is not None:
            self.offset, self.count = mark.offset, mark.line
        elif file.read(len(BOM_UTF8)) == BOM_UTF8:
            self.offset = len(BOM_UTF8)
        file.seek(self.offset)
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="")

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        text = next(self._text)
        self.count += 1
        self.offset += len(text) if text.isascii() else len(text.encode())
        return text


def _stamp(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _records(path: str, mark: _Mark | None = None) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yields the samples of a list, all with the same columns in the same order.

    Args:
        path: The list.
        mark: Where to begin; None for the beginning.

    Yields:
        The number of the sample's last line, the number of bytes up to its end, and its values.
    """
    try:
        with open(path, "rb", opener=only_files) as file:
            if mark is not None and _stamp(os.fstat(file.fileno())) != mark.stamp:
                raise SourceChanged(f"{path} has changed since this pack began: pack it again")
            lines = _Lines(file, mark)
            read = _csv_records if _is_csv(path) else _json_records
            for record in read(path, lines, () if mark is None else mark.names):
                yield lines.count, lines.offset, record
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path} is not UTF-8: {error}") from error
    except csv.Error as error:
        raise SchemaError(f"{path} is not CSV: {error}") from error
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error}") from error


def _csv_records(path: str, lines: _Lines, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    reader = csv.reader(lines, skipinitialspace=True, strict=True)
    header = list(names) or [name.strip() for name in next(reader, [])]
    if len(set(header)) != len(header):
        raise SchemaError(f"{path}: two columns have the same name: {', '.join(header)}")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise SchemaError(
                f"{path} line {lines.count}: {len(cells)} cells, but the header has "
                f"{len(header)} ({', '.join(header)})"
            )
        yield dict(zip(header, cells, strict=True))


def _json_records(path: str, lines: _Lines, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for text in lines:
        if not text.strip():
            continue
        line = lines.count
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
        yield {name: record[name] for name in names}


def _path_column(path: str, names: Iterable[str]) -> str:
    for name in PATH_COLUMNS:
        if name in names:
            return name
    raise SchemaError(
        f"{path} has no column of image paths: one of {', '.join(PATH_COLUMNS)} is needed, it has "
        f"{', '.join(names)}"
    )


def _image_column(path: str, field: str, names: Iterable[str]) -> str:
    """Returns the column of a field of images."""
    return field if field in names else _path_column(path, names)


def _is_csv(path: str) -> bool:
    return path.lower().endswith(".csv")


def _cell_kind(text: str) -> str:
    """Returns what a CSV cell looks like: "empty", "text", "int" or "float"."""
    if not text:
        return "empty"
    text = text.strip()  # or one number with a blank behind it would make words of all numbers
    if _LEADING_ZERO.match(text):
        return "text"
    if _INTEGER.fullmatch(text):
        # Integers that no field can hold are kept as text.
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
