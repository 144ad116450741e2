"""CSV files, JSON and lines of text, read from their beginning to their end."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from fastio.errors import ShardCorrupt
from fastio.sources.table.cuts import line_bytes
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.reading import (
    Batches,
    Columns,
    Place,
    Spans,
    Table,
    each_batch,
    from_beginning,
    reading,
)

# What types of text files are found out from, and what of them is read at a time.
_TEXT_BLOCK = 8 << 20
_BEGINNING = 4096  # bytes of a JSON file, which tell whether it is an array
_JSON_BLOCK = 1 << 20  # that pyarrow's threads parse at a time, where lines are shorter
_TYPE_ADVICE = "give its column's type with dtypes (--dtype), if that is it"


class CsvTable(Table):
    """A CSV file with a header; the types of its columns are those of its first rows.

    Values may contain line breaks, so rows can only be found by reading from the beginning.
    """

    is_text = True

    def __init__(self, file: TableFile | str) -> None:
        self._file = as_file(file)
        self.name = self._file.name
        with reading(self.name), self._open({}, None) as reader:
            beginning = next(iter(reader), None)
            self.schema = _with_uint64(reader.schema, beginning, self._first_as)

    def _first_as(self, field: pa.Field) -> None:
        with self._open({field.name: field.type}, [field.name]) as reader:
            reader.read_next_batch()

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`. The only part is the whole file."""
        return Spans.whole(self._file.size())

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`."""
        with reading(self.name):
            reader = self._open(columns, list(columns))
        with reader:
            found = each_batch(reader, self.name, _TYPE_ADVICE)
            yield from from_beginning(self.name, found, columns)

    def _open(self, types: Columns, columns: list[str] | None) -> Any:
        return pa_csv.open_csv(
            self._file.stream(),
            read_options=pa_csv.ReadOptions(block_size=_TEXT_BLOCK, use_threads=False),
            parse_options=pa_csv.ParseOptions(
                delimiter=self._file.separator, newlines_in_values=True
            ),
            convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=columns),
        )


class LinesFile(Table):
    """A file of text that is divided into parts at line breaks, unless it is read as a whole.

    Args:
        file: The file.
    """

    def __init__(self, file: TableFile | str) -> None:
        self._file = as_file(file)
        self.name = self._file.name

    @abstractmethod
    def _batches(
        self, schema: pa.Schema, begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields rows of some columns.

        Args:
            schema: The columns.
            begin, end: The byte range in which the rows begin; None for the end of the file.
        """

    def _blocks(self, begin: int, end: int | None) -> Iterator[bytes]:
        """Yields lines in blocks of whole lines, of 8 MiB or of one longer line; see `_batches`."""
        # The byte before the part shows whether a line begins with it.
        with self._file.stream(max(begin - 1, 0)) as file:
            if end is None:
                blocks = iter(partial(file.read, _TEXT_BLOCK), b"")
            else:
                blocks = line_bytes(file, self.name, begin, end, _TEXT_BLOCK)
            yield from _whole_lines(blocks)

    @property
    def _is_whole(self) -> bool:
        """Whether the file is read as a whole."""
        return self._file.is_compressed  # a part of a compressed file cannot be found

    def _rows_before(self, schema: pa.Schema, begin: int) -> int:
        """Returns the number of rows before those that begin in a part."""
        return sum(batch.num_rows for batch in self._batches(schema, 0, begin))

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`.

        Raises:
            ShardCorrupt: The file cannot be read, or a line is not valid.
            SchemaError: A value has the wrong type.
        """
        return from_beginning(self.name, self._batches(pa.schema(list(columns.items()))), columns)

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`."""
        nbytes = self._file.size()
        return Spans.whole(nbytes) if self._is_whole else Spans.of_lines(nbytes, step)

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """See `Table`. The rows before a part are counted only if a message needs their number.

        Raises:
            SourceChanged: The file was truncated, replaced or written to.
        """
        if self._is_whole:
            yield from self.batches(columns, 0, rows)
            return
        begin, end, _ = place
        end = end if most is None else min(end, begin + most)
        schema = pa.schema(list(columns.items()))
        before = cache(partial(self._rows_before, schema, begin))
        for origin, batch in from_beginning(self.name, self._batches(schema, begin, end), columns):
            self._file.check()
            yield (replace(origin, rows_before=before) if begin else origin), batch


class JsonTable(LinesFile):
    """A file of JSON objects, one a line, or in one array; the first rows tell columns and types.

    An array is read into memory as a whole.
    """

    is_text = True

    def __init__(self, file: TableFile | str) -> None:
        super().__init__(file)
        with reading(self.name):
            with self._file.stream() as content:
                self._is_array = content.read(_BEGINNING).lstrip()[:1] == b"["
            block = next(self._blocks(0, None), None)
            if block is None:
                raise ShardCorrupt(f"{self.name} has no lines; leave it out")
            found = _parsed(block, None)
            self.schema = _with_uint64(
                found.schema, found, lambda field: _parsed(block, pa.schema([field]))
            )

    @property
    def _is_whole(self) -> bool:
        return super()._is_whole or self._is_array

    def _rows_before(self, schema: pa.Schema, begin: int) -> int:
        # Lines are counted, which is faster than parsing them.
        lines = (line for block in self._blocks(0, begin) for line in block.split(b"\n"))
        return sum(1 for line in lines if line.strip())

    def _batches(
        self, schema: pa.Schema, begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        with reading(self.name, _TYPE_ADVICE):
            for block in self._blocks(begin, end):
                yield from _parsed(block, schema).to_batches()

    def _blocks(self, begin: int, end: int | None) -> Iterator[bytes]:
        blocks = super()._blocks(begin, end)
        if self._is_array:
            blocks = iter([_lines_of_array(b"".join(blocks), self.name)])
        # pyarrow refuses a block without a row.
        return (block for block in blocks if block.strip())


class LinesTable(LinesFile):
    """A file of text: a column `text` with a row for each line, without its line break."""

    is_text = True
    schema = pa.schema([("text", pa.string())])

    def _batches(
        self, schema: pa.Schema, begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        kind = (schema if "text" in schema.names else self.schema).field("text").type
        with reading(self.name):
            for block in self._blocks(begin, end):
                lines = pa.array(block.splitlines(), pa.large_binary())
                yield pa.record_batch([lines.cast(pa.large_string()).cast(kind)], ["text"])


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the bytes of a file, which come in any blocks, in blocks of whole lines."""
    left: list[bytes] = []
    for block in blocks:
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield b"".join([*left, whole, newline])
            left = []
        left.append(rest)
    last = b"".join(left)
    if last:
        yield last


def _lines_of_array(data: bytes, name: str) -> bytes:
    """Returns the objects of a JSON array, one a line.

    Raises:
        ShardCorrupt: The text is not an array of objects.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShardCorrupt(f"{name} begins with [ but is not a JSON array: {error}") from error
    wrong = next((place for place, each in enumerate(found) if not isinstance(each, dict)), None)
    if wrong is not None:
        raise ShardCorrupt(
            f"{name}: item {wrong} of its JSON array is not an object. Write each row as an "
            'object: [{"column": value, ...}, ...]'
        )
    return b"".join(json.dumps(each).encode() + b"\n" for each in found)


def _with_uint64(
    schema: pa.Schema, beginning: Any, parse_as: Callable[[pa.Field], object]
) -> pa.Schema:
    """Returns the types of columns, with uint64 where pyarrow takes integers for floats.

    It does so from 2**63 on, where a float has lost the last eleven bits.

    Args:
        schema: The types that pyarrow infers from the beginning of a file.
        beginning: Its first rows, a batch or a table; None if there are none.
        parse_as: Parses a column of them, and raises ArrowInvalid if it is not of this type.
    """
    for at, field in enumerate(schema if beginning is not None else ()):
        is_float = pa.types.is_float64(field.type)
        if is_float and (pc.max(beginning.column(at)).as_py() or 0) >= 1 << 63:
            exact = field.with_type(pa.uint64())
            with suppress(pa.ArrowInvalid):
                parse_as(exact)
                schema = schema.set(at, exact)
    return schema


def _parsed(block: bytes, schema: pa.Schema | None) -> pa.Table:
    """Returns the rows of a block of lines, each of which pyarrow parses as a whole.

    Args:
        block: The lines.
        schema: The columns that are wanted; None for all, with the types that pyarrow infers.
    """
    options = None
    if schema is not None:  # other columns may be there, and are left out
        options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    # pyarrow refuses a line that is longer than two of its blocks, so a block holds the longest
    # line.
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    longest = int(np.diff(ends, prepend=-1, append=len(block)).max())
    read = pa_json.ReadOptions(block_size=max(_JSON_BLOCK, longest + 1))
    return pa_json.read_json(pa.BufferReader(block), read, options)
