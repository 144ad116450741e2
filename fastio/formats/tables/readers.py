"""Table files of each kind, read batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet

from fastio.errors import SchemaError, ShardCorrupt, SourceNotFound
from fastio.formats.tables.files import table_kind
from fastio.formats.tables.place import Place

# What types of text files are found out from, and what of them is read at a time.
_TEXT_BLOCK = 8 << 20

Batches = Iterator[tuple[Place, pa.RecordBatch]]


class Table(Protocol):
    """A table: one file, or one in memory.

    Attributes:
        name: its path, or what it is called.
        schema: its columns.
        rows: how many it has, None where only reading it tells.
        is_text: whether its types are those that its text looks like.
    """

    name: str
    schema: pa.Schema
    rows: int | None
    is_text: bool

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """The rows from number `start` on.

        Args:
            columns: what is wanted.
            types: their types, for files of text.
            start: the first row.
            rows: about so many at a time.

        Raises:
            ShardCorrupt: the file is damaged; names row groups of Parquet.
        """
        ...


def open_table(path: str) -> Table:
    """A table file, whose columns are read.

    Raises:
        SourceNotFound: it cannot be read.
        ShardCorrupt: it is empty or damaged.
        SchemaError: two of its columns have the same name.
    """
    kinds: dict[str, type[Table]] = {
        "parquet": ParquetTable,
        "arrow": ArrowTable,
        "csv": CsvTable,
        "jsonl": JsonTable,
    }
    try:
        empty = os.path.getsize(path) == 0
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error}") from error
    if empty:
        raise ShardCorrupt(f"{path} is empty: it has 0 bytes; write it again, or leave it out")
    table: Table = kinds[table_kind(path) or ""](path)  # type: ignore[call-arg]
    names = table.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{path}: several columns are called {twice[0]!r}: rename them")
    return table


class ParquetTable:
    """A Parquet file, read row group by row group.

    Attributes:
        metadata: its footer.
    """

    def __init__(self, path: str) -> None:
        self.is_text = False
        self.name = path
        with reading(path), pa_parquet.ParquetFile(path) as file:
            self.schema: pa.Schema = file.schema_arrow
            self.metadata: pa_parquet.FileMetaData = file.metadata
            self.rows: int | None = self.metadata.num_rows

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        with reading(self.name):
            file = pa_parquet.ParquetFile(self.name)
        with file:
            first = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if first + count > start:
                    yield from self._group(file, group, first, columns, start, rows)
                first += count

    def _group(
        self,
        file: pa_parquet.ParquetFile,
        group: int,
        first: int,
        columns: Sequence[str],
        start: int,
        rows: int,
    ) -> Batches:
        where = f"{self.name}, row group {group}"
        with reading(where):
            batches = file.iter_batches(rows, row_groups=[group], columns=list(columns))
        while True:
            with reading(where):
                batch = next(batches, None)
            if batch is None:
                return
            batch, skipped = _from(batch, start - first)
            if batch.num_rows:
                yield Place(self.name, first + skipped, group), batch
            first += skipped + batch.num_rows


class ArrowTable:
    """An Arrow IPC file or stream; Feather files of version 2 are such files.

    Attributes:
        batch_rows: rows of each record batch; empty for a stream.
    """

    def __init__(self, path: str) -> None:
        self.is_text = False
        self.name = path
        self.rows: int | None = None
        self.batch_rows: list[int] = []
        with reading(path), pa.memory_map(path) as source:
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                self.schema: pa.Schema = file.schema
                numbers = range(file.num_record_batches)
                self.batch_rows = [int(file.get_batch(number).num_rows) for number in numbers]
                self.rows = sum(self.batch_rows)
            else:
                source.seek(0)
                self.schema = pa.ipc.open_stream(source).schema

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        with pa.memory_map(self.name) as source:
            yield from skipped_to(self.name, self._batches(source), start, columns)

    def _batches(self, source: Any) -> Iterator[pa.RecordBatch]:
        with reading(self.name):
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                batches = map(file.get_batch, range(file.num_record_batches))
            else:
                source.seek(0)
                batches = iter(pa.ipc.open_stream(source))
        while True:
            with reading(self.name):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class CsvTable:
    """A CSV file with a header; the types of its columns are those of its first rows."""

    def __init__(self, path: str) -> None:
        self.is_text = True
        self.name = path
        self.rows: int | None = None
        with reading(path), self._open({}, None) as reader:
            self.schema: pa.Schema = reader.schema

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        with reading(self.name):
            reader = self._open(types, list(columns))
        with reader:
            yield from skipped_to(self.name, self._batches(reader), start, columns)

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        while True:
            with reading(self.name, "give its column's type with dtypes (--dtype), if that is it"):
                batch = next(reader, None)
            if batch is None:
                return
            yield batch

    def _open(self, types: Mapping[str, pa.DataType], columns: list[str] | None) -> Any:
        return pa_csv.open_csv(
            self.name,
            read_options=pa_csv.ReadOptions(block_size=_TEXT_BLOCK, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=columns),
        )


class JsonTable:
    """A file of JSON objects, one a line; the columns and types are those of its first rows."""

    def __init__(self, path: str) -> None:
        self.is_text = True
        self.name = path
        self.rows: int | None = None
        with reading(path):
            block = next(self._blocks(), None)
            if block is None:
                raise ShardCorrupt(f"{path} has no lines; leave it out")
            self.schema: pa.Schema = pa_json.read_json(pa.BufferReader(block)).schema

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        schema = pa.schema([(name, types[name]) for name in columns])
        yield from skipped_to(self.name, self._batches(schema), start, columns)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Columns that are not wanted may be there, and are left out.
        options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        with reading(self.name, "give its column's type with dtypes (--dtype), if that is it"):
            for block in self._blocks():
                table = pa_json.read_json(pa.BufferReader(block), parse_options=options)
                yield from table.to_batches()

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, some MiB of them at a time."""
        left = b""
        with pa.input_stream(self.name, compression="detect") as file:
            while block := file.read(_TEXT_BLOCK):
                whole, newline, rest = (left + block).rpartition(b"\n")
                if (whole + newline).strip():
                    yield whole + newline
                    left = rest
                else:
                    left = rest
        if left.strip():
            yield left


class MemoryTable:
    """An Arrow table in memory.

    Args:
        name: what messages call it.
        table: with `to_batches`.
    """

    def __init__(self, name: str, table: pa.Table) -> None:
        self.is_text = False
        self.name = name
        self.schema: pa.Schema = table.schema
        self.rows: int | None = table.num_rows
        self._table = table

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        yield from skipped_to(self.name, iter(self._table.to_batches()), start, columns)


class StreamTable:
    """Arrow batches that come one after the other, once.

    Args:
        name: what messages call it.
        reader: gives them.
    """

    def __init__(self, name: str, reader: pa.RecordBatchReader) -> None:
        self.is_text = False
        self.name = name
        self.schema: pa.Schema = reader.schema
        self.rows: int | None = None
        self._reader = reader

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`; can be called once."""
        yield from skipped_to(self.name, iter(self._reader), start, columns)


def skipped_to(
    name: str, batches: Iterator[pa.RecordBatch], start: int, columns: Sequence[str]
) -> Batches:
    """Batches of a table that can only be read from its beginning, from row `start` on."""
    first = 0
    for batch in batches:
        kept, skipped = _from(batch, start - first)
        if kept.num_rows:
            yield Place(name, first + skipped), kept.select(list(columns))
        first += batch.num_rows


@contextmanager
def reading(where: str, advice: str = "copy it again, or write it again") -> Iterator[None]:
    """pyarrow's errors as fastio's, naming the file."""
    try:
        yield
    except ShardCorrupt:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(f"{where} does not exist") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ShardCorrupt(f"{where} cannot be read: {error}; {advice}") from error


def _from(batch: pa.RecordBatch, start: int) -> tuple[pa.RecordBatch, int]:
    """A batch without the rows before `start`, and how many those are."""
    skipped = min(max(start, 0), batch.num_rows)
    return (batch.slice(skipped) if skipped else batch), skipped
