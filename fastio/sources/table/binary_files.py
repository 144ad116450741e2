"""Reads Parquet and Arrow files by row group; from a store, only the necessary ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio.errors import FastioError, ShardCorrupt
from fastio.runtime.ahead import in_order
from fastio.sources.table.footers import check_footer
from fastio.sources.table.ipc import MAGIC, Block, batch_rows, blocks, footer_length
from fastio.sources.table.mapped import Mapped
from fastio.sources.table.objects import StoreFile, TableFile, as_file
from fastio.sources.table.place import Place
from fastio.sources.table.reading import Batches, reading, skipped_to, without_rows
from fastio.sources.table.spans import Span, bytes_of
from fastio.sources.table.trust import (
    CheckedStream,
    Checks,
    check_decompressed,
    check_stream,
)

T = TypeVar("T")
_ATTEMPTS = 6  # fetches of data that arrives damaged


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
        if isinstance(self.file, StoreFile):
            self.file.opened(self._open)
        else:
            self._open()
            self.file.check()

    def _open(self) -> None:
        with reading(self.name), pa_parquet.ParquetFile(_with_footer(self.file)) as opened:
            self.schema = opened.schema_arrow
            self.metadata = opened.metadata
            check_footer(self.metadata, self.file.size())
            self.rows = self.metadata.num_rows

    def fetch(self, group: int, columns: Sequence[str]) -> list[Span]:
        """Fetches the columns of a row group of a file in a store.

        Raises:
            ShardCorrupt: If the file has changed.
            StoreError: If it cannot be read.
        """
        assert isinstance(self.file, StoreFile)
        return self.file.fetch(chunk_ranges(self.metadata, group, columns, self.name))

    def opened(self, spans: Sequence[Span]) -> pa_parquet.ParquetFile:
        """Opens the file in a store with the fetched spans."""
        assert isinstance(self.file, StoreFile)
        # Without pre_buffer, which would request ranges of its own.
        return pa_parquet.ParquetFile(
            self.file.whole(spans),
            metadata=self.metadata,
            pre_buffer=False,
            page_checksum_verification=True,  # of pages that have one
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
        if isinstance(self.file, StoreFile):
            yield from self._from_store(groups, columns, start, rows)
            return
        with reading(self.name):
            file = pa_parquet.ParquetFile(self.name, metadata=self.metadata)
        with file:
            for group, first in groups:
                yield from self._group(file, group, first, columns, start, rows)

    def undamaged(
        self,
        group: int,
        columns: Sequence[str],
        spans: Sequence[Span],
        batches: Callable[[pa_parquet.ParquetFile, Sequence[Span]], Iterator[T]],
    ) -> Iterator[T]:
        """Reads a row group's columns from what `fetch` returned; see the function `undamaged`."""
        assert isinstance(self.file, StoreFile)

        def read(spans: Sequence[Span]) -> Iterator[T]:
            with self.opened(spans) as file:
                yield from batches(file, spans)

        return undamaged(self.file, spans, lambda: self.fetch(group, columns), read)

    def _from_store(
        self, groups: Sequence[tuple[int, int]], columns: Sequence[str], start: int, rows: int
    ) -> Batches:
        fetched = in_order(
            lambda group: self.fetch(group, columns), (group for group, _ in groups), 1, ahead=1
        )
        for (group, first), spans in zip(groups, fetched, strict=True):
            read = partial(self._of_group, group, first, columns, start, rows)
            yield from self.undamaged(group, columns, spans, read)

    def _of_group(
        self,
        group: int,
        first: int,
        columns: Sequence[str],
        start: int,
        rows: int,
        file: pa_parquet.ParquetFile,
        _: Sequence[Span],
    ) -> Batches:
        return self._group(file, group, first, columns, start, rows)

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
            batch, skipped = without_rows(batch, start - first)
            if batch.num_rows:
                yield Place(self.name, first + skipped, group), batch
            first += skipped + batch.num_rows


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
        self._footer: list[Span] = []
        self._blocks: list[Block] = []
        if isinstance(self.file, StoreFile):
            self.file.opened(self._open)
        else:
            self._open()
            self.file.check()

    def _open(self) -> None:
        with reading(self.name):
            if isinstance(self.file, StoreFile):
                self._open_stored(self.file)
            else:
                self._open_local()

    @property
    def has_batches(self) -> bool:
        """Whether record batches can be read separately."""
        return self.rows is not None

    @property
    def body_bytes(self) -> list[int]:
        """The size in bytes of each record batch."""
        return [block.metadata + block.body for block in self._blocks]

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        stored = isinstance(self.file, StoreFile)
        batches = self._stored() if stored else self._local()
        yield from skipped_to(self.name, batches, start, columns, self.checks)

    def fetch(self, number: int) -> list[Span]:
        """Fetches a record batch of a file in a store.

        Raises:
            ShardCorrupt: If the file has changed.
            StoreError: If it cannot be read.
        """
        assert isinstance(self.file, StoreFile)
        block = self._blocks[number]
        return self.file.fetch([(block.offset, block.metadata + block.body)])

    def batch(self, number: int, spans: Sequence[Span]) -> pa.RecordBatch:
        """Reads a record batch of a file in a store from what `fetch` returned; see `undamaged`."""
        assert isinstance(self.file, StoreFile)
        file = self.file

        def read(spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
            self._check_size(number, partial(_view_of, spans))
            whole = file.whole(sorted([*self._footer, *spans], key=_start))
            yield pa.ipc.open_file(whole).get_batch(number)

        return next(undamaged(file, spans, lambda: self.fetch(number), read))

    def mapped_batch(self, file: Mapped, number: int) -> pa.RecordBatch:
        """Reads a record batch of a mapped local file, whose reader is `pa.ipc.open_file`.

        Raises:
            ShardCorrupt: it is damaged, or compressed and would take too much memory.
        """
        view = file.view
        self._check_size(number, lambda offset, length: view[offset : offset + length])
        with reading(f"{self.name}, record batch {number}"):
            return file.reader.get_batch(number)

    def _check_size(self, number: int, data: Callable[[int, int], memoryview]) -> None:
        block = self._blocks[number]
        _check_block(block, data, f"{self.name}, record batch {number}")

    def _open_local(self) -> None:
        file = Mapped(self.name)
        view, buffer = file.view, file.buffer()
        if view[: len(MAGIC)] != MAGIC:
            self.schema: pa.Schema = pa.ipc.open_stream(buffer).schema
            return

        def data(offset: int, length: int) -> memoryview:
            return view[offset : offset + length]

        try:
            length = footer_length(view)
            end = len(view) - len(MAGIC) - 4
            if not 0 <= length <= end:
                raise ValueError(f"the size of its footer, {length} bytes, is not possible")
            dictionaries, self._blocks = blocks(data(end - length, length))
            heads = [data(block.offset, block.metadata) for block in self._blocks]
            self.batch_rows = [batch_rows(head) for head in heads]
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        for number, block in enumerate(dictionaries):
            _check_block(block, data, f"{self.name}, dictionary {number}")
        self.schema = pa.ipc.open_file(buffer).schema
        self.rows = sum(self.batch_rows)
        file.check()

    def _open_stored(self, file: StoreFile) -> None:
        tail = file.tail()
        start, data = tail[0]
        if bytes(data[-len(MAGIC) :]) != MAGIC:
            self.schema = self._stream(file).schema
            return
        length = footer_length(data)
        end = file.size() - len(MAGIC) - 4
        if not 0 <= length <= end:
            raise pa.ArrowInvalid(f"the size of its footer, {length} bytes, is not possible")
        if end - length < start:
            ((start, data),) = file.fetch([(end - length, file.size() - end + length)])
        try:
            dictionaries, self._blocks = blocks(data[end - length - start : end - start])
            self._footer = [(start, data)]
            heads = [(block.offset, block.metadata) for block in self._blocks]
            known = dict(_cut(file.fetch(heads), heads)) if heads else {}
            self.batch_rows = [batch_rows(known[offset]) for offset, _ in heads]
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        self.schema = pa.ipc.open_file(file.whole(self._footer)).schema
        found = file.fetch([(b.offset, b.metadata + b.body) for b in dictionaries])
        for number, block in enumerate(dictionaries):
            _check_block(block, partial(_view_of, found), f"{self.name}, dictionary {number}")
        self._footer += found
        self.rows = sum(self.batch_rows)

    def _stream(self, file: StoreFile) -> Any:
        return pa.ipc.open_stream(pa.PythonFile(CheckedStream(file.stream(), self.name), mode="r"))

    def _stored(self) -> Iterator[pa.RecordBatch]:
        if self.has_batches:
            numbers = range(len(self.batch_rows))
            for number, spans in zip(
                numbers, in_order(self.fetch, numbers, 1, ahead=1), strict=True
            ):
                with reading(self.name):
                    batch = self.batch(number, spans)
                yield batch
            return
        assert isinstance(self.file, StoreFile)
        with reading(self.name):
            batches = iter(self._stream(self.file))
        yield from self._each(batches)

    def _local(self) -> Iterator[pa.RecordBatch]:
        with reading(self.name):
            if self.has_batches:
                file = Mapped(self.name, pa.ipc.open_file)
                numbers = iter(range(len(self.batch_rows)))
                batches = (self.mapped_batch(file, number) for number in numbers)
            else:
                file = self.mapped = Mapped(self.name, pa.ipc.open_stream)
                check_stream(file.view, self.name)
                batches = iter(file.reader)
        for batch in self._each(batches):
            file.check_size()
            yield batch
            file.check()  # nothing of it was copied before

    def _each(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            with reading(self.name):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def _check_block(block: Block, data: Callable[[int, int], memoryview], where: str) -> None:
    """Refuses a message of a file whose decompressed size exceeds the limit."""
    body = data(block.offset + block.metadata, block.body)
    check_decompressed(data(block.offset, block.metadata), body, where)


def _view_of(spans: Sequence[Span], offset: int, length: int) -> memoryview:
    return bytes_of(spans, offset, length).data


def undamaged(
    file: StoreFile,
    spans: Sequence[Span],
    fetch: Callable[[], Sequence[Span]],
    read: Callable[[Sequence[Span]], Iterator[T]],
) -> Iterator[T]:
    """Yields what `read` reads of a file in a store. Fetches data again if it cannot be read.

    If a second fetch returns the same bytes, they are damaged at the source and not on the way.

    Args:
        file: The file.
        spans: The data that was fetched.
        fetch: Fetches it again.
        read: Reads the data. It must yield the same items for the same contents.

    Raises:
        ShardCorrupt, pyarrow.ArrowException, OSError: As raised by `read`.
    """
    given = 0
    for attempt in range(_ATTEMPTS):
        try:
            for number, found in enumerate(read(spans)):
                if number >= given:
                    given += 1
                    yield found
            return
        except (ShardCorrupt, pa.ArrowException, OSError) as error:
            ours = isinstance(error, FastioError) and not isinstance(error, ShardCorrupt)
            if ours or attempt + 1 == _ATTEMPTS:
                raise
            fresh = fetch()
            if list(fresh) == list(spans):
                raise
            file.store.transfers.note_refetch()
            spans = fresh


def chunk_ranges(
    metadata: pa_parquet.FileMetaData, group: int, columns: Sequence[str], where: str
) -> list[tuple[int, int]]:
    """Returns the ranges (offset, length) of a row group's columns in a Parquet file.

    Raises:
        ShardCorrupt: If the footer's values are impossible.
    """
    about = metadata.row_group(group)
    wanted = tuple(f"{name}." for name in columns)
    found = []
    for number in range(about.num_columns):
        chunk = about.column(number)
        if not f"{chunk.path_in_schema}.".startswith(wanted):
            continue
        found.append(chunk_range(chunk, f"{where}, row group {group}"))
    return found


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
            f"{where}: column {chunk.path_in_schema!r} is said to begin at {begin} and to have "
            f"{length} bytes: write the file again"
        )
    return begin, length


def _with_footer(file: TableFile) -> Any:
    """Returns what pyarrow opens. The end of a file in a store is fetched first."""
    return file.whole(file.tail()) if isinstance(file, StoreFile) else file.whole()


def _cut(
    spans: Sequence[Span], ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, memoryview]]:
    """Yields each range's offset and its bytes from the spans."""
    for offset, length in ranges:
        for start, data in reversed(spans):
            if start <= offset:
                yield offset, data[offset - start : offset - start + length]
                break


def _start(span: Span) -> int:
    return span[0]


__all__ = ["ArrowTable", "ParquetTable", "chunk_ranges"]
