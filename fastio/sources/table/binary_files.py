"""Parquet and Arrow files, read by row group, of which a store delivers only what is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio.errors import ShardCorrupt
from fastio.packed.metadata import (
    END_BYTES,
    FOOTER_BATCHES,
    FOOTER_DICTIONARIES,
    MAGIC,
    Block,
    batch_rows,
    blocks,
    footer_length,
)
from fastio.sources.table.footers import check_footer
from fastio.sources.table.mapped import Mapped
from fastio.sources.table.objects import Data, TableFile, as_file
from fastio.sources.table.place import Place
from fastio.sources.table.reading import Batches, reading, skipped_to, without_rows
from fastio.sources.table.trust import (
    CheckedStream,
    Checks,
    check_decompressed,
    check_stream,
)


class ParquetTable:
    """A Parquet file, which is read row group by row group.

    Attributes:
        file: The file.
        metadata: Its footer.
        skip: The numbers of row groups that are not wanted.
    """

    def __init__(self, file: TableFile | str) -> None:
        self.is_text = False
        self.file = as_file(file)
        self.name = self.file.name
        self.skip: frozenset[int] = frozenset()
        self.schema: pa.Schema
        self.metadata: pa_parquet.FileMetaData
        self.rows: int | None
        self.file.opened(self._open)

    def _open(self) -> None:
        with (
            reading(self.name, kind="Parquet"),
            pa_parquet.ParquetFile(self.file.tail().source()) as opened,
        ):
            self.schema = opened.schema_arrow
            self.metadata = opened.metadata
            check_footer(self.metadata, self.file.size())
            self.rows = self.metadata.num_rows

    def ranges(self, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Returns the ranges (offset, length) of a row group's columns in the file.

        Raises:
            ShardCorrupt: If the footer's values are impossible.
        """
        about = self.metadata.row_group(group)
        wanted = tuple(f"{name}." for name in columns)
        chunks = (about.column(number) for number in range(about.num_columns))
        return [
            chunk_range(chunk, f"{self.name}, row group {group}")
            for chunk in chunks
            if f"{chunk.path_in_schema}.".startswith(wanted)
        ]

    def reader(self, data: Data) -> pa_parquet.ParquetFile:
        """Returns pyarrow's reader of data that has the ranges that are read."""
        return data.opened(self._reader)

    def _reader(self, source: Any) -> pa_parquet.ParquetFile:
        return pa_parquet.ParquetFile(
            source,
            metadata=self.metadata,
            pre_buffer=False,  # it would request ranges of its own
            # Only of data that was transferred, and of pages that have a checksum.
            page_checksum_verification=self.file.remote,
        )

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        groups: list[tuple[int, int]] = []
        first = 0
        for group in range(self.metadata.num_row_groups):
            count = self.metadata.row_group(group).num_rows
            if first + count > start and group not in self.skip:
                groups.append((group, first))
            first += count
        with reading(self.name):
            fetched = self.file.each(self.ranges(group, columns) for group, _ in groups)
        for (group, first), data in zip(groups, fetched, strict=True):
            fetch = partial(self._fetch, group, columns)
            read = partial(self._group, group, first, columns, start, rows)
            yield from self.file.intact(data, fetch, read)

    def _fetch(self, group: int, columns: Sequence[str]) -> Data:
        return self.file.fetch(self.ranges(group, columns))

    def _group(
        self, group: int, first: int, columns: Sequence[str], start: int, rows: int, data: Data
    ) -> Batches:
        where = f"{self.name}, row group {group}"
        with reading(where):
            file = self.reader(data)
            batches = file.iter_batches(rows, row_groups=[group], columns=list(columns))
        for batch in _each(batches, where):
            kept, skipped = without_rows(batch, start - first)
            if kept.num_rows:
                yield Place(self.name, first + skipped, group), kept
            first += batch.num_rows


class ArrowTable:
    """An Arrow IPC file or stream. Feather files of version 2 are IPC files.

    Attributes:
        file: The file.
        batch_rows: The number of rows of each record batch; empty for a stream.
        checks: Validates its columns.
        mapped: The mapped stream that batches lie in, after it was read; else None.
    """

    def __init__(self, file: TableFile | str) -> None:
        self.is_text = False
        self.file = as_file(file)
        self.name = self.file.name
        self.rows: int | None = None
        self.batch_rows: list[int] = []
        self.checks = Checks(self.name)
        self.mapped: Mapped | None = None
        self.schema: pa.Schema
        self._footer: Data | None = None  # of a file in a store: footer and dictionaries
        self._blocks: Sequence[Block] = ()
        self.file.opened(self._open)

    @property
    def has_batches(self) -> bool:
        """Whether record batches can be read separately."""
        return self.rows is not None

    def ranges(self, number: int) -> list[tuple[int, int]]:
        """Returns the range (offset, length) of a record batch in the file, in a list."""
        block = self._blocks[number]
        return [(block.offset, block.metadata + block.body)]

    def fetch(self, number: int) -> Data:
        """Returns data that has a record batch and the file's footer.

        Raises:
            ShardCorrupt: If the file has changed.
            StoreError: If it cannot be read.
        """
        return self._with_footer(self.file.fetch(self.ranges(number)))

    def batch(self, data: Data, number: int) -> pa.RecordBatch:
        """Reads a record batch from what `fetch` returned. Its columns are not validated.

        Raises:
            ShardCorrupt: If it is damaged, or compressed and would take too much memory.
        """
        where = f"{self.name}, record batch {number}"
        with reading(where):
            reader = data.opened(pa.ipc.open_file)
        _check_block(self._blocks[number], data, where)
        with reading(where):
            return reader.get_batch(number)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        batches = self._batches() if self.has_batches else self._stream()
        yield from skipped_to(self.name, batches, start, columns, self.checks)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        numbers = range(len(self.batch_rows))
        fetched = self.file.each(self.ranges(number) for number in numbers)
        for number, data in zip(numbers, fetched, strict=True):
            whole, fetch = self._with_footer(data), partial(self.fetch, number)
            yield from self.file.intact(whole, fetch, partial(self._one_batch, number))

    def _one_batch(self, number: int, data: Data) -> Iterator[pa.RecordBatch]:
        batch = self.batch(data, number)
        data.check_size()  # offsets that are followed from here on were validated before
        yield batch

    def _with_footer(self, data: Data) -> Data:
        return data if self._footer is None else data.joined(self._footer)

    # --- Opening ----------------------------------------------------------------------------------

    def _open(self) -> None:
        with reading(self.name):
            data, size = self.file.tail(), self.file.size()
            if not _is_file(data, size):
                self.schema = self._stream_reader().schema
                return
            try:
                self._open_file(data, size)
            except ValueError as error:
                raise pa.ArrowInvalid(str(error)) from error
            data.check()

    def _open_file(self, data: Data, size: int) -> None:
        end = size - END_BYTES
        length = footer_length(_view(data, end, END_BYTES))
        if not 0 <= length <= end:
            raise ValueError(f"the size of its footer, {length} bytes, is not possible")
        data = data.more([(end - length, length + END_BYTES)])
        footer = _view(data, end - length, length)
        dictionaries = blocks(footer, FOOTER_DICTIONARIES)
        self._blocks = blocks(footer, FOOTER_BATCHES)
        heads = [(block.offset, block.metadata) for block in self._blocks]
        known = data.more(heads)
        self.batch_rows = [batch_rows(_view(known, *head)) for head in heads]
        data = data.more([(block.offset, block.metadata + block.body) for block in dictionaries])
        for number, block in enumerate(dictionaries):
            _check_block(block, data, f"{self.name}, dictionary {number}")
        self.schema = data.opened(pa.ipc.open_file).schema
        self._footer = data if self.file.remote else None
        self.rows = sum(self.batch_rows)

    # --- Streams ----------------------------------------------------------------------------------

    def _stream_reader(self) -> Any:
        """Returns pyarrow's reader of a stream. One in a local file is mapped."""
        if self.file.remote:
            stream = CheckedStream(self.file.stream(), self.name)
            return pa.ipc.open_stream(pa.PythonFile(stream, mode="r"))
        self.mapped = Mapped(self.name)
        return self.mapped.opened(pa.ipc.open_stream)

    def _stream(self) -> Iterator[pa.RecordBatch]:
        with reading(self.name):
            reader, file = self._stream_reader(), self.mapped
            if file is not None:
                check_stream(file.view, self.name)
        for batch in _each(iter(reader), self.name):
            if file is not None:
                file.check_size()
            yield batch
            if file is not None:
                file.check()  # nothing of it was copied before


def _each(batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
    """Yields batches. Errors of pyarrow name `where`."""
    while True:
        with reading(where):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _is_file(data: Data, size: int) -> bool:
    """Returns whether an Arrow file is no stream. A truncated one has the magic number only at its
    beginning.
    """
    count = len(MAGIC)
    if size >= count and _view(data, size - count, count) == MAGIC:
        return True
    return size >= count and _view(data.more([(0, count)]), 0, count) == MAGIC


def _check_block(block: Block, data: Data, where: str) -> None:
    """Refuses a message of a file whose decompressed size exceeds the limit."""
    metadata = _view(data, block.offset, block.metadata)
    body = _view(data, block.offset + block.metadata, block.body)
    check_decompressed(metadata, body, where)


def _view(data: Data, offset: int, length: int) -> memoryview:
    return data.data(offset, length).data


def chunk_range(chunk: pa_parquet.ColumnChunkMetaData, where: str) -> tuple[int, int]:
    """Returns the range (offset, length) of a column chunk in a Parquet file.

    Raises:
        ShardCorrupt: If the footer's values are impossible. `where` names the row group.
    """
    begin, length = chunk.data_page_offset, chunk.total_compressed_size
    if chunk.dictionary_page_offset:
        begin = min(begin, chunk.dictionary_page_offset)
    if begin < 0 or length < 0:
        raise ShardCorrupt(
            f"{where}: column {chunk.path_in_schema!r} has an impossible position in the "
            f"footer, {length} bytes at {begin}: write the file again"
        )
    return begin, length
