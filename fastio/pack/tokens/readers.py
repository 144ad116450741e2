"""Finds files of text, and reads JSON lines, plain text and samples in Python as tables.

JSON lines are read here and not as other tables are, so that what stands beside the text may
differ from line to line, documents may be of any length, and a bad line is named.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

from fastio.errors import PackError, SampleError, SchemaError, ShardCorrupt, SourceNotFound
from fastio.pack.tokens.encoders import DocumentUnit
from fastio.packed import is_dataset
from fastio.runtime.files import check_file, unless_gone
from fastio.shown import without_secrets
from fastio.sources.table.files import table_kind
from fastio.sources.table.objects import decompressed
from fastio.sources.table.reading import Batches, from_beginning, reading
from fastio.store import is_remote

_BLOCK = 4 << 20  # bytes read at a time
_LOOKED_AT = 100  # lines or samples whose values say what type a column has
_SAMPLES = 256  # that are made a batch
_BOM = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(r"\n(?:[ \t\r]*\n)+")


class _Streamed:
    """A table that is read from its beginning to its end; see `Table`."""

    name: str
    schema: pa.Schema
    rows: int | None = None
    is_text = False

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`.

        Raises:
            ShardCorrupt: A file cannot be read, or a line is not valid.
            SchemaError: A value has the wrong type.
            SampleError: An iterable raised an error.
        """
        schema = pa.schema([(name, types[name]) for name in columns])
        yield from from_beginning(self.name, self._batches(schema), columns)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields all rows of some columns."""
        raise NotImplementedError


class JsonLines(_Streamed):
    """A file of JSON objects, one per line, compressed or not; see `Table`.

    Attributes:
        text: The column that has a string in every line; to be set before rows are read.
        is_empty: Whether it has no lines.

    Raises:
        ShardCorrupt: Its first lines cannot be read.
    """

    is_text = True

    def __init__(self, path: str) -> None:
        self.name = path
        self.text: str | None = None
        _, block = next(_line_blocks(path), (1, b""))
        head = block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]
        records = [record for _, record in self._records(1, head)]
        self.is_empty = not records
        self.schema = _schema_of(records)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return (self._parsed(first, block, schema) for first, block in _line_blocks(self.name))

    def _parsed(self, first_line: int, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the rows of a block; what pyarrow refuses is read line by line."""
        # Columns that are not wanted may be there, and are left out.
        parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        read = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        try:
            table = pa_json.read_json(pa.BufferReader(block), read, parse)
            if self.text is None or not table[self.text].null_count:
                table.validate(full=True)
                return table.combine_chunks().to_batches()[0]
        except (pa.ArrowException, IndexError):
            pass
        return self._by_lines(first_line, block, schema)

    def _by_lines(self, first_line: int, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        records = []
        for number, record in self._records(first_line, block.split(b"\n")):
            self._check_text(number, record)
            records.append(record)
        return _batch(records, schema, f"{self.name}, from line {first_line}")

    def _records(
        self, first_line: int, lines: Iterable[bytes]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(lines, first_line):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ShardCorrupt(f"{self.name} line {number} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ShardCorrupt(
                    f"{self.name} line {number}: expected a JSON object, got {line[:80]!r}"
                )
            yield number, record

    def _check_text(self, number: int, record: Mapping[str, Any]) -> None:
        if self.text is None:
            return
        where, value = f"{self.name} line {number}", record.get(self.text)
        if self.text not in record:
            raise SchemaError(f"{where} has no {self.text!r}; it has {', '.join(record)}")
        if not isinstance(value, str):
            kind = "null" if value is None else json.dumps(value)[:80]
            raise SchemaError(f"{where}: {self.text!r} is {kind}, expected a string")
        _check_unicode(value, f"{where}: {self.text!r}")


class PlainText(_Streamed):
    """A file of plain text, UTF-8, compressed or not; see `Table`.

    Args:
        path: The path of the file.
        document: The unit that is one document.
        column: The name of the column of documents.
    """

    def __init__(self, path: str, document: DocumentUnit, column: str) -> None:
        self.name = path
        self.rows = 1 if document == "file" else None
        self.schema = pa.schema([(column, pa.large_utf8())])
        self._document = document

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        parts = {"file": self._file, "line": self._lines, "blank-line": self._paragraphs}
        for texts in parts[self._document]():
            arrays = [pa.array(texts, pa.large_utf8())]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _file(self) -> Iterator[list[str]]:
        with reading(self.name), decompressed(self.name) as file:
            data = file.read()
        yield [self._decoded(1, data.removeprefix(_BOM))]

    def _lines(self) -> Iterator[list[str]]:
        for first, block in _line_blocks(self.name):
            text = self._decoded(first, block).removesuffix("\n")
            yield [line.removesuffix("\r") for line in text.split("\n")]

    def _paragraphs(self) -> Iterator[list[str]]:
        left = ""
        for first, block in _line_blocks(self.name):
            *whole, left = _BLANK_LINES.split(left + self._decoded(first, block))
            yield from _stripped(whole)
        yield from _stripped([left])

    def _decoded(self, first_line: int, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = first_line + data.count(b"\n", 0, error.start)
            raise ShardCorrupt(f"{self.name} line {line} is not UTF-8: {error.reason}") from error


class Samples(_Streamed):
    """Strings or dicts from an iterable, which is iterated over once; see `Table`.

    Args:
        name: The name of the source, for messages.
        samples: The strings or dicts.
        column: The name of the column of strings.

    Raises:
        SchemaError: The first samples are neither.
        SampleError: The iterable raised an error.
    """

    def __init__(self, name: str, samples: Iterable[Any], column: str) -> None:
        self.name = name
        self._column = column
        each = self._records(samples)
        first = list(islice(each, _LOOKED_AT))
        self.is_empty = not first
        self.schema = _schema_of(first)
        self._rest = chain(first, each)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = 0
        while records := list(islice(self._rest, _SAMPLES)):
            yield _batch(records, schema, f"{self.name}, samples from {first}")
            first += len(records)

    def _records(self, samples: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        each, number = iter(samples), 0
        while True:
            where = f"sample {number}"
            try:
                sample = next(each)
            except StopIteration:
                return
            except Exception as error:  # the iterable's own code
                raise SampleError(self.name, number, where, error) from error
            if isinstance(sample, str):
                _check_unicode(sample, where)
                sample = {self._column: sample}
            if not isinstance(sample, Mapping):
                raise SchemaError(
                    f"{where} of {self.name} is of type {type(sample).__name__}, expected a str, "
                    "or a dict with one"
                )
            yield sample
            number += 1


def _line_blocks(path: str) -> Iterator[tuple[int, bytes]]:
    """Yields whole lines, some MiB at a time, with the number of the first, from 1."""
    line, left = 1, b""
    with reading(path), decompressed(path) as file:
        while block := file.read(_BLOCK):
            if line == 1 and not left:
                block = block.removeprefix(_BOM)
            whole, newline, rest = (left + block).rpartition(b"\n")
            if newline:
                yield line, whole + newline
                line += whole.count(b"\n") + 1
            left = rest
    if left:
        yield line, left


def _stripped(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    found = [text.strip("\r\n") for text in paragraphs]
    found = [text for text in found if text.strip()]
    if found:
        yield found


def _schema_of(records: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Returns the columns of records, in order of first occurrence; null if types differ."""
    names = dict.fromkeys(name for record in records for name in record)
    types = {}
    for name in names:
        values = [record.get(name) for record in records]
        try:
            kind = pa.infer_type(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            kind = pa.null()
        types[str(name)] = pa.large_utf8() if pa.types.is_string(kind) else kind
    return pa.schema(list(types.items()))


def _batch(records: Sequence[Mapping[str, Any]], schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Returns records as a batch; SchemaError if a value has another type than its column."""
    arrays = []
    for column in schema:
        try:
            arrays.append(pa.array([record.get(column.name) for record in records], column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"{where}: column {column.name!r} does not have the type {column.type} of its "
                f"first values everywhere: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"{where} cannot be encoded as UTF-8: {error.reason}") from error


# --- Files ----------------------------------------------------------------------------------------

_PLAIN = (".txt", ".txt.gz", ".txt.zst")
_JSON = (".jsonl.zst", ".ndjson.zst")
_PATTERN = frozenset("*?[")


def text_kind(path: str | os.PathLike[str]) -> str | None:
    """Returns "text", "jsonl" or another kind of table, by the name of a file; else None."""
    name = os.path.basename(os.fspath(path)).lower()
    if name.endswith(_PLAIN):
        return "text"
    return "jsonl" if name.endswith(_JSON) else table_kind(name)


def find_texts(src: Any) -> list[str] | None:
    """Returns the files of text that a source means, sorted; None if it is not a path.

    Args:
        src: A file; a folder with such files at any depth; a pattern such as "data/*.jsonl"; or a
            list of any of these.

    Raises:
        SourceNotFound: A path does not exist, or has no text.
        PackError: A list has paths and other strings, or a dataset is packed already.
    """
    if isinstance(src, (str, os.PathLike)):
        return _of_path(os.fspath(src))
    if not isinstance(src, (list, tuple)) or not src:
        return None
    are_paths = [_is_path(item) for item in src]
    if not any(are_paths):
        return None
    if not all(are_paths):
        other = src[are_paths.index(False)]
        raise PackError(
            f"{src[are_paths.index(True)]} is a path, and {str(other)[:80]!r} is not the path "
            "of an existing text file: give only paths, or only documents"
        )
    return [path for item in src for path in _of_path(os.fspath(item))]


def _is_path(item: Any) -> bool:
    if isinstance(item, os.PathLike):
        return True
    if not isinstance(item, str) or "\n" in item or "\0" in item:
        return False
    return text_kind(item) is not None or os.path.isdir(item)


def _of_path(path: str) -> list[str]:
    if os.path.isdir(path):
        return _of_folder(path)
    if os.path.exists(path):
        if text_kind(path) is None:
            raise SourceNotFound(
                f"{path} is not a text file: .txt, .jsonl, .ndjson, .parquet, .arrow, .feather and "
                ".csv are"
            )
        return [_checked(path)]
    if not _PATTERN.intersection(path):
        if is_remote(path):
            raise SourceNotFound(
                f"{without_secrets(path)} is behind a URL, and text that is packed with a "
                "tokenizer must be local: copy it to this machine"
            )
        raise SourceNotFound(f"{path} does not exist")
    matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    found = [name for name in matches if text_kind(name) is not None]
    if not found:
        raise SourceNotFound(f"{path} matches no text file")
    return found


def _checked(path: str) -> str:
    """Returns a path after checking that it is a file: opening a pipe would block."""
    try:
        check_file(path)
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error
    return path


def _of_folder(folder: str) -> list[str]:
    if is_dataset(folder):
        raise PackError(f"{folder} is already packed")
    found: list[str] = []
    try:
        for parent, folders, names in os.walk(folder, onerror=unless_gone):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
            for name in names:
                if text_kind(name) is not None and not name.startswith((".", "_")):
                    found.append(_checked(os.path.join(parent, name)))
    except PermissionError as error:
        raise SourceNotFound(f"{error.filename} cannot be read: {error.strerror}") from error
    if not found:
        raise SourceNotFound(f"{folder} has no text files (.txt, .jsonl, .parquet, .csv, ...)")
    return sorted(found, key=lambda name: Path(name).parts)
