"""CSV and JSONL files, read from their beginning to their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from fastio.errors import ShardCorrupt
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.reading import Batches, each_batch, from_beginning, reading

# What types of text files are found out from, and what of them is read at a time.
_TEXT_BLOCK = 8 << 20
_JSON_BLOCK = 1 << 20  # that pyarrow's threads parse at a time, where lines are shorter
_TYPE_ADVICE = "give its column's type with dtypes (--dtype), if that is it"


class CsvTable:
    """A CSV file with a header; the types of its columns are those of its first rows."""

    def __init__(self, file: TableFile | str) -> None:
        self.is_text = True
        self._file = as_file(file)
        self.name = self._file.name
        self.rows: int | None = None
        with reading(self.name), self._open({}, None) as reader:
            self.schema: pa.Schema = reader.schema

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        with reading(self.name):
            reader = self._open(types, list(columns))
        with reader:
            found = each_batch(reader, self.name, _TYPE_ADVICE)
            yield from from_beginning(self.name, found, columns)

    def _open(self, types: Mapping[str, pa.DataType], columns: list[str] | None) -> Any:
        return pa_csv.open_csv(
            self._file.stream(),
            read_options=pa_csv.ReadOptions(block_size=_TEXT_BLOCK, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=columns),
        )


class JsonTable:
    """A file of JSON objects, one a line; the columns and types are those of its first rows."""

    def __init__(self, file: TableFile | str) -> None:
        self.is_text = True
        self._file = as_file(file)
        self.name = self._file.name
        self.rows: int | None = None
        with reading(self.name):
            block = next(self._blocks(), None)
            if block is None:
                raise ShardCorrupt(f"{self.name} has no lines; leave it out")
            self.schema: pa.Schema = _parsed(block, None).schema

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        schema = pa.schema([(name, types[name]) for name in columns])
        return from_beginning(self.name, self._batches(schema), columns)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Columns that are not wanted may be there, and are left out.
        options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        with reading(self.name, _TYPE_ADVICE):
            for block in self._blocks():
                yield from _parsed(block, options).to_batches()

    def _blocks(self) -> Iterator[bytes]:
        """Yields the file in blocks of whole lines, of 8 MiB or of one longer line."""
        left: list[bytes] = []
        with self._file.stream() as file:
            while block := file.read(_TEXT_BLOCK):
                whole, newline, rest = block.rpartition(b"\n")
                if newline:
                    lines = b"".join([*left, whole, newline])
                    left = []
                    if lines.strip():
                        yield lines
                left.append(rest)
        last = b"".join(left)
        if last.strip():
            yield last


def _parsed(block: bytes, options: Any) -> pa.Table:
    """Returns the rows of a block of lines, each of which pyarrow parses as a whole."""
    size = max(_JSON_BLOCK, _longest_line(block) + 1)
    read = pa_json.ReadOptions(block_size=size)
    return pa_json.read_json(pa.BufferReader(block), read, options)


def _longest_line(block: bytes) -> int:
    """Returns the number of bytes of the longest line, with its line break."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    return int(np.diff(ends, prepend=-1, append=len(block)).max())
