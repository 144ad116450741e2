"""Reads JSON lines, plain text and samples in Python as tables.

JSON lines are read here and not as other tables are, so that what stands beside the text may
differ from line to line, documents may be of any length, and a bad line is named.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

from fastio.errors import SchemaError, ShardCorrupt
from fastio.pack.iterables import numbered_samples
from fastio.pack.tokens.encoders import DocumentUnit
from fastio.sources.table.cuts import line_bytes
from fastio.sources.table.objects import LocalFile, decompressed
from fastio.sources.table.reading import Batches, Columns, Spans, Table, from_beginning, reading
from fastio.sources.table.text_files import LinesFile

_BLOCK = 4 << 20  # bytes read at a time
_LOOKED_AT = 100  # lines or samples whose values say what type a column has
_SAMPLES = 256  # of an iterable in a batch
_BLANK_LINES = re.compile(r"\n(?:[ \t\r]*\n)+")
_BLANK_LINES_BYTES = re.compile(_BLANK_LINES.pattern.encode())


class JsonLines(LinesFile):
    """A file of JSON objects, one per line, compressed or not; see `Table`.

    Attributes:
        text: The column that has a string in every line; to be set before rows are read.
        is_empty: Whether it has no lines.

    Raises:
        ShardCorrupt: Its first lines cannot be read.
    """

    is_text = True

    def __init__(self, path: str) -> None:
        super().__init__(LocalFile(path))
        self.text: str | None = None
        lines, block = next(_line_blocks(path), (_Lines(path), b""))
        head = block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]
        records = [record for _, record in self._records(lines, head)]
        self.is_empty = not records
        self.schema = _schema_of(records)

    def _batches(
        self, schema: pa.Schema, begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        blocks = _line_blocks(self.name, begin, end)
        return (self._parsed(lines, block, schema) for lines, block in blocks)

    def _parsed(self, lines: _Lines, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the rows of a block; what pyarrow refuses is read line by line."""
        # Columns that are not wanted may be there, and are left out.
        parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        read = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        try:
            table = pa_json.read_json(pa.BufferReader(block), read, parse)
            if self.text is None or not table[self.text].null_count:
                table.validate(full=True)
                return table.combine_chunks().to_batches()[0]
        # IndexError: the block has no rows.
        except (pa.ArrowException, IndexError):
            pass
        return self._by_lines(lines, block, schema)

    def _by_lines(self, lines: _Lines, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        records = []
        for number, record in self._records(lines, block.split(b"\n")):
            self._check_text(lines, number, record)
            records.append(record)
        return _batch(records, schema, lambda: f"{self.name}, from line {lines.number(0)}")

    def _records(
        self, lines: _Lines, texts: Iterable[bytes]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields records, each with the number of its line among the texts."""
        for number, line in enumerate(texts):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ShardCorrupt(f"{lines.name(number)} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ShardCorrupt(
                    f"{lines.name(number)}: expected a JSON object, got {line[:80]!r}"
                )
            yield number, record

    def _check_text(self, lines: _Lines, number: int, record: Mapping[str, Any]) -> None:
        if self.text is None:
            return
        value = record.get(self.text)
        if self.text not in record:
            raise SchemaError(
                f"{lines.name(number)} has no {self.text!r}; it has {', '.join(record)}"
            )
        if not isinstance(value, str):
            kind = "null" if value is None else json.dumps(value)[:80]
            raise SchemaError(f"{lines.name(number)}: {self.text!r} is {kind}, expected a string")
        _check_unicode(value, lambda: f"{lines.name(number)}: {self.text!r}")


class PlainText(LinesFile):
    """A file of plain text, UTF-8, compressed or not; see `Table`.

    Args:
        path: The path of the file.
        document: The unit that is one document.
        column: The name of the column of documents.
    """

    def __init__(self, path: str, document: DocumentUnit, column: str) -> None:
        super().__init__(LocalFile(path))
        self.rows = 1 if document == "file" else None
        self.schema = pa.schema([(column, pa.large_utf8())])
        self._document = document

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`. A file that is a document has one part."""
        nbytes = self._file.size()
        one = self._document == "file" and not self._file.is_compressed
        return super().spans(columns, max(nbytes, 1) if one else step)

    def _batches(
        self, schema: pa.Schema, begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        parts = {"file": self._whole, "line": self._by_lines, "blank-line": self._paragraphs}
        for texts in parts[self._document](begin, end):
            arrays = [pa.array(texts, pa.large_utf8())]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _whole(self, begin: int, end: int | None) -> Iterator[list[str]]:
        with reading(self.name), decompressed(self.name) as file:
            data = file.read(end)
        if end is not None and end < self._file.size():  # the beginning, which shows its size
            yield [data.removeprefix(BOM_UTF8).decode(errors="ignore")]
        else:
            yield [_decoded(_Lines(self.name), data.removeprefix(BOM_UTF8))]

    def _by_lines(self, begin: int, end: int | None) -> Iterator[list[str]]:
        for lines, block in _line_blocks(self.name, begin, end):
            text = _decoded(lines, block).removesuffix("\n")
            yield [line.removesuffix("\r") for line in text.split("\n")]

    def _paragraphs(self, begin: int, end: int | None) -> Iterator[list[str]]:
        if end is not None:
            # A unit has the documents after the first blank line from `begin` on, up to the first
            # one from `end` on, so that each document is in one unit.
            begin, end = (_after_blank_line(self.name, at) for at in (begin, end))
        left = ""
        for lines, block in _line_blocks(self.name, begin, end):
            *whole, left = _BLANK_LINES.split(left + _decoded(lines, block))
            yield from _stripped(whole)
        yield from _stripped([left])


class Samples(Table):
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

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`.

        Raises:
            SchemaError: A value has the wrong type.
            SampleError: The iterable raised an error.
        """
        return from_beginning(self.name, self._batches(pa.schema(list(columns.items()))), columns)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = 0
        while records := list(islice(self._rest, _SAMPLES)):
            yield _batch(records, schema, partial("{}, samples from {}".format, self.name, first))
            first += len(records)

    def _records(self, samples: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        for number, sample in numbered_samples(self.name, samples):
            where = f"sample {number}"
            if isinstance(sample, str):
                _check_unicode(sample, where.__str__)
                sample = {self._column: sample}
            if not isinstance(sample, Mapping):
                raise SchemaError(
                    f"{where} of {self.name} is of type {type(sample).__name__}, expected a str, "
                    "or a dict with one"
                )
            yield sample


@dataclass(frozen=True)
class _Lines:
    """Some lines of a file, for messages.

    Attributes:
        path: The path of the file.
        begin: The byte from which on lines were read.
        first: The number of lines from there to the first of these.
    """

    path: str
    begin: int = 0
    first: int = 0

    def number(self, place: int) -> int:
        """Returns the number in the file of one of the lines, from 1. May read the file."""
        before = 0
        if self.begin:
            with reading(self.path), decompressed(self.path) as file:
                before, left = 1, self.begin - 1
                while left > 0 and (block := file.read(min(left, _BLOCK))):
                    before, left = before + block.count(b"\n"), left - len(block)
        return 1 + before + self.first + place

    def name(self, place: int) -> str:
        """Returns the file and the number of one of the lines, as messages begin."""
        return f"{self.path} line {self.number(place)}"


def _line_blocks(
    path: str, begin: int = 0, end: int | None = None
) -> Iterator[tuple[_Lines, bytes]]:
    """Yields whole lines, some MiB at a time.

    Args:
        path: The path of the file.
        begin, end: The bytes in which the lines begin; None to the end of the file.
    """
    line, left = 0, b""
    # Reading begins one byte earlier, which shows whether a line begins at `begin`.
    with reading(path), decompressed(path, max(begin - 1, 0)) as file:
        if end is None:
            blocks = iter(partial(file.read, _BLOCK), b"")
        else:
            blocks = line_bytes(file, path, begin, end, _BLOCK)
        for block in blocks:
            if not begin and not line and not left:
                block = block.removeprefix(BOM_UTF8)
            whole, newline, rest = (left + block).rpartition(b"\n")
            if newline:
                yield _Lines(path, begin, line), whole + newline
                line += whole.count(b"\n") + 1
            left = rest
    if left:
        yield _Lines(path, begin, line), left


def _after_blank_line(path: str, at: int) -> int:
    """Returns where the text after the next blank line begins, from byte `at` on.

    0 for the beginning of the file, and the number of its bytes if there is no blank line.
    """
    if not at:
        return 0
    data = b""
    with reading(path), decompressed(path, at) as file:
        while block := file.read(_BLOCK):
            data += block
            found = _BLANK_LINES_BYTES.search(data)
            if found is not None and found.end() < len(data):
                return at + found.end()
    return at + len(data)


def _decoded(lines: _Lines, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = lines.name(data.count(b"\n", 0, error.start))
        raise ShardCorrupt(f"{where} is not UTF-8: {error.reason}") from error


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


def _batch(
    records: Sequence[Mapping[str, Any]], schema: pa.Schema, where: Callable[[], str]
) -> pa.RecordBatch:
    """Returns records as a batch; SchemaError if a value has another type than its column."""
    arrays = []
    for column in schema:
        try:
            arrays.append(pa.array([record.get(column.name) for record in records], column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"{where()}: column {column.name!r} does not have the type {column.type} of its "
                f"first values everywhere: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_unicode(text: str, where: Callable[[], str]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"{where()} cannot be encoded as UTF-8: {error.reason}") from error
