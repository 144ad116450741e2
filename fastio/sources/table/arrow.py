"""Arrow files, streams and tables in memory, which are checked before their offsets are used.

Arrow uses a file's buffers as they are and follows offsets that are negative or that lead outside
their buffer. So each column of a record batch is validated in full before it is used, including
children and dictionaries. Strings that are not UTF-8 are not refused here: the code that decodes
them knows the row and gives a better message.

Compressed buffers state their decompressed size, which is allocated before anything is verified. A
record batch may therefore take `_MOST_FREELY` bytes, or `_MOST_RATIO` times its compressed size if
that is more, and never more than half of the available memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from fastio.errors import ShardCorrupt
from fastio.packed.metadata import (
    END_BYTES,
    FOOTER_BATCHES,
    FOOTER_DICTIONARIES,
    MAGIC,
    Block,
    batch_rows,
    blocks,
    body_bytes,
    buffer_places,
    decompressed_bytes,
    footer_length,
    is_compressed,
    message_head,
)
from fastio.runtime.memory import available_memory
from fastio.sources.table.data import Fetched, ForwardFile, check_ranges
from fastio.sources.table.leaves import least_bits, with_types
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.reading import (
    AtHand,
    Batches,
    Columns,
    Grouped,
    Origin,
    Place,
    Spans,
    Table,
    each_batch,
    first_rows,
    from_beginning,
    reading,
    rows_within,
    sliced,
)

_MOST_FREELY = 256 << 20
_MOST_RATIO = 1000
_MOST_BATCH = 1 << 40  # decompressed bytes of a record batch, whatever its buffers state
# Types of the same layout that may hold any bytes.
_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
_PIECE_BYTES = 64 << 20
_ALWAYS = 16 << 20  # bytes that are allowed without asking for the available memory


def check_column(array: pa.Array, name: str, where: str) -> None:
    """Validates a column, or raises ShardCorrupt, which names it and `where` it is."""
    problem = _problem(array)
    if problem is not None:
        raise damaged(problem, name, where)


def damaged(problem: pa.ArrowException, name: str, where: str) -> ShardCorrupt:
    """Returns the error of a column that Arrow has found damaged."""
    return ShardCorrupt(
        f"{where}: column {name!r} is damaged: {' '.join(str(problem).split())}; write the file "
        "again, or do not use it if you do not know who wrote it"
    )


def _check_columns(name: str, batch: pa.RecordBatch, number: int, columns: Iterable[str]) -> None:
    for column in columns:
        check_column(batch.column(column), column, f"{name}, record batch {number}")


def check_decompressed(metadata: memoryview, body: memoryview, where: str) -> None:
    """Refuses a message whose compressed buffers state an implausibly large decompressed size.

    Raises:
        ShardCorrupt: If the size exceeds the limit, or the metadata are damaged.
    """
    try:
        nbytes = decompressed_bytes(metadata, body)
    except ValueError as error:
        raise ShardCorrupt(f"{where}: {error}; write the file again") from error
    if nbytes <= _ALWAYS:
        return
    most, available = max(_MOST_FREELY, _MOST_RATIO * len(body)), available_memory()
    if available:
        most = min(most, available // 2)
    if nbytes > most:
        raise ShardCorrupt(
            f"{where}: its {len(body):,} compressed bytes would decompress to {nbytes:,}, more "
            f"than the limit of {most:,}: write the file again with fewer rows per record batch, "
            "or without compression"
        )


class CheckedStream(ForwardFile):
    """An Arrow stream for `pyarrow.PythonFile`, whose messages are checked before Arrow reads them.

    Metadata are copied, so that nobody can change them after the check. Buffers are what `read`
    returns.

    Args:
        read: Returns the next bytes of the stream, fewer only at its end.
        where: The name of the stream, for messages.
    """

    def __init__(self, read: Callable[[int], Any], where: str) -> None:
        super().__init__()
        self._read = read
        self._where = where
        self._number = 0
        self._body = memoryview(b"")

    def _next(self) -> memoryview:
        """Returns the metadata of the next message, or the buffers of the last one."""
        if self._body:
            body, self._body = self._body, memoryview(b"")
            return body
        begin = bytes(self._read(8))  # a marker and the size of the metadata
        try:
            head = message_head(memoryview(begin))
            if head is None:
                return memoryview(begin)
            metadata = memoryview(begin + bytes(self._read(sum(head) - len(begin))))
            nbytes = body_bytes(metadata)
            self._body = memoryview(self._read(nbytes))
            if len(self._body) < nbytes:
                raise ValueError(f"its last message has {len(self._body)} of {nbytes} bytes")
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        check_decompressed(metadata, self._body, f"{self._where}, message {self._number}")
        self._number += 1
        return metadata


def _read(file: Any, nbytes: int) -> bytes:
    """Reads bytes of which a damaged file may claim any number; fewer only at its end."""
    parts: list[bytes] = []
    while nbytes > 0 and (part := file.read(min(nbytes, _PIECE_BYTES))):
        parts.append(part)
        nbytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _problem(array: pa.Array) -> pa.ArrowException | None:
    # Strings are viewed as bytes, because UTF-8 is checked when they are decoded. Extension types
    # are viewed as their storage types: pyarrow before 26 aborts the process if an extension of
    # lists is viewed as itself. For the storage of lists it raises an error, and the array stays.
    with suppress(pa.ArrowException):
        array = array.view(with_types(array.type, _AS_BYTES))
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        return error
    return None


class InParts:
    """A local Arrow file, of which pyarrow reads the buffers of some columns into memory."""

    def __init__(self, path: str, schema: pa.Schema, columns: Sequence[str]) -> None:
        wanted = [number for name in columns for number in schema.get_all_field_indices(name)]
        options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        # pyarrow takes a path whose name is not UTF-8 as bytes only.
        self.reader = pa.ipc.open_file(pa.OSFile(os.fsencode(path)), options=options)

    def check(self) -> None:
        """Does nothing, because nobody else can change what was read."""

    def check_size(self) -> None:
        """Does nothing; see `check`."""


class ArrowTable(Grouped):
    """An Arrow IPC file or stream. Feather files of version 2 are IPC files.

    What is read is in memory that no other program can change, so that it stays as it was checked.

    Attributes:
        file: The file.
        batch_rows: The number of rows of each record batch; empty for a stream.
    """

    def __init__(self, file: TableFile | str) -> None:
        self.file = as_file(file)
        self.name = self.file.name
        self.rows = None
        self.batch_rows: list[int] = []
        self._footer: Fetched | None = None  # footer and dictionaries
        self._blocks: Sequence[Block] = ()
        self._heads: Fetched | None = None  # the metadata of all record batches
        self._compressed = False
        self.file.opened(self._open)

    @property
    def has_batches(self) -> bool:
        """Whether record batches can be read separately."""
        return self.rows is not None

    @property
    def has_parts(self) -> bool:
        """Whether `in_parts` can be used: for local files that are not compressed."""
        return not self.file.remote and not self._compressed

    def in_parts(self, columns: Sequence[str]) -> InParts:
        """Opens the file for `batch`, which then reads only these columns.

        Raises:
            SourceChanged: The file was replaced or written to. It is not kept open then.
        """
        with reading(self.name):
            found = InParts(self.name, self.schema, columns)
        self.file.check()
        return found

    def ranges(self, number: int) -> list[tuple[int, int]]:
        """Returns the range (offset, length) of a record batch in the file, in a list."""
        block = self._blocks[number]
        return [(block.offset, block.metadata + block.body)]

    def fetch(self, number: int) -> Fetched:
        """Returns data that has a record batch and the file's footer; see `TableFile.fetch`."""
        assert self._footer is not None
        return self.file.fetch(self.ranges(number)).joined(self._footer)

    def nbytes(self, number: int, columns: Sequence[str]) -> int:
        """Returns the size of columns of a record batch, or of all if their sizes are unknown."""
        whole = self.ranges(number)[0][1]
        if not self.has_parts:
            return whole
        assert self._heads is not None
        block = self._blocks[number]
        message = np.empty(block.metadata + block.body, np.uint8)  # of the body, sizes are asked
        message[: block.metadata] = self._heads.data(block.offset, block.metadata)
        try:
            with reading(f"{self.name}, record batch {number}"):
                self._check_places(number)
                batch = pa.ipc.read_record_batch(pa.py_buffer(message), self.schema)
        except ShardCorrupt as error:
            if isinstance(error.__cause__, pa.ArrowKeyError):
                return whole  # of dictionaries, which are in other messages
            raise
        return int(batch.select(list(columns)).get_total_buffer_size())

    def batch(self, data: Any, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Reads columns of a record batch, and validates them.

        Args:
            data: What `fetch` or `in_parts` returned.
            number: The number of the record batch.
            columns: The names of the columns.

        Raises:
            ShardCorrupt: If it is damaged, or compressed and would take too much memory.
        """
        where = f"{self.name}, record batch {number}"
        with reading(where):
            if isinstance(data, InParts):
                self._check_places(number)
                reader = data.reader
            else:
                _check_block(self._blocks[number], data, where)
                reader = data.opened(pa.ipc.open_file)
            batch = reader.get_batch(number).select(list(columns))
        _check_columns(self.name, batch, number, columns)
        return batch

    def _check_places(self, number: int) -> None:
        """Refuses buffers that do not lie in the message, which pyarrow reads from the file."""
        assert self._heads is not None
        block = self._blocks[number]
        places = np.frombuffer(
            buffer_places(_view(self._heads, block.offset, block.metadata)), "<i8"
        ).reshape(-1, 2)
        if (places < 0).any() or (places > block.body - places[:, ::-1]).any():
            raise pa.ArrowInvalid(f"buffers exceed the body of {block.body} bytes")

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`."""
        if self.has_batches:
            return super().batches(columns, start, rows)
        check = partial(_check_columns, self.name)
        return from_beginning(self.name, self._stream(), columns, check)

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`."""
        return super().spans(columns, step) if self.has_batches else Spans.whole(self.file.size())

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """See `Table`."""
        if self.has_batches:
            return super().span(columns, place, rows, most)
        return self.batches(columns, 0, rows)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Grouped`."""
        return [
            (rows, self.nbytes(number, varying) if varying and rows else 0)
            for number, rows in enumerate(self.batch_rows)
        ]

    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """See `Grouped`."""

        def batches(data: Any) -> Iterator[pa.RecordBatch]:
            return sliced(self.batch(data, number, columns), rows)

        fetch = partial(self.fetch, number)
        if self.has_parts:
            opened = at_hand.opened((self.name, *columns), partial(self.in_parts, columns))
        else:
            opened = at_hand.take(self.file, number, fetch)
        return self.file.intact(opened, fetch, batches)

    def ahead(self, number: int, columns: Sequence[str], at_hand: AtHand) -> bool:
        """See `Grouped`."""
        ((_, nbytes),) = self.ranges(number)
        return at_hand.begin(self.file, number, nbytes, partial(self.fetch, number))

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

    def _open_file(self, data: Fetched, size: int) -> None:
        end = size - END_BYTES
        length = footer_length(_view(data, end, END_BYTES))
        if not 0 <= length <= end:
            raise ValueError(f"the size of its footer, {length} bytes, is not possible")
        data = data.more([(end - length, length + END_BYTES)])
        footer = _view(data, end - length, length)
        dictionaries = blocks(footer, FOOTER_DICTIONARIES)
        self._blocks = blocks(footer, FOOTER_BATCHES)
        check_ranges(self.name, [(b.offset, b.metadata + b.body) for b in self._blocks], size)
        # The heads of all record batches are read now: they have the numbers of rows, which the
        # footer lacks.
        places = [(block.offset, block.metadata) for block in self._blocks]
        known = data.more(places)
        heads = [_view(known, *place) for place in places]
        self.batch_rows = list(map(batch_rows, heads))
        compressed = list(map(is_compressed, heads))
        self._compressed = any(compressed)
        # Only local files are read in parts, and need the heads again.
        self._heads = None if self.file.remote else known
        data = data.more([(block.offset, block.metadata + block.body) for block in dictionaries])
        for number, block in enumerate(dictionaries):
            _check_block(block, data, f"{self.name}, dictionary {number}")
        self.schema = data.opened(pa.ipc.open_file).schema
        bits = sum(least_bits(column.type) for column in self.schema)
        for block, rows, packed in zip(self._blocks, self.batch_rows, compressed, strict=True):
            _check_rows(rows, bits, block.body, packed)
        self._footer = data
        self.rows = sum(self.batch_rows)

    # --- Streams ----------------------------------------------------------------------------------

    def _stream_reader(self) -> Any:
        """Returns pyarrow's reader of a stream."""
        stream = CheckedStream(partial(_read, self.file.stream()), self.name)
        return pa.ipc.open_stream(pa.PythonFile(stream, mode="r"))

    def _stream(self) -> Iterator[pa.RecordBatch]:
        with reading(self.name):
            reader = self._stream_reader()
        return each_batch(iter(reader), self.name)


def _check_rows(rows: int, bits: int, body: int, compressed: bool) -> None:
    """Refuses a record batch that states more rows, of at least `bits`, than its bytes can hold."""
    most = _MOST_BATCH if compressed else body  # its buffers are checked when it is read
    if rows * bits > 8 * most:
        raise ValueError(f"a record batch of {body:,} bytes states {rows:,} rows")


def _is_file(data: Fetched, size: int) -> bool:
    """Returns whether an Arrow file is no stream, by the magic number at its end or beginning."""
    count = len(MAGIC)
    if size >= count and _view(data, size - count, count) == MAGIC:
        return True
    return size >= count and _view(data.more([(0, count)]), 0, count) == MAGIC


def _check_block(block: Block, data: Fetched, where: str) -> None:
    """Refuses a message of a file whose decompressed size exceeds the limit."""
    metadata = _view(data, block.offset, block.metadata)
    body = _view(data, block.offset + block.metadata, block.body)
    check_decompressed(metadata, body, where)


def _view(data: Fetched, offset: int, length: int) -> memoryview:
    return data.data(offset, length).data


class MemoryTable(Table):
    """An Arrow table in memory, or a stream of record batches, which can be read once."""

    def __init__(self, name: str, data: pa.Table | pa.RecordBatchReader) -> None:
        self.name = name
        self.schema = data.schema
        self.rows = data.num_rows if isinstance(data, pa.Table) else None
        self._data = data

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`."""
        check = partial(_check_columns, self.name)
        if self.rows is None:  # a reader of record batches has no beginning to return to
            return from_beginning(self.name, iter(self._data), columns, check)
        found = from_beginning(
            self.name, iter(self._data.slice(start).to_batches()), columns, check
        )
        return ((Origin(self.name, start + origin.first_row), batch) for origin, batch in found)

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`. Parts have equal numbers of rows."""
        data = self._data
        if not isinstance(data, pa.Table):
            return None
        nbytes, rows = max(data.select(list(columns)).nbytes, 1), data.num_rows
        count = min(max(1, round(nbytes / step)), max(rows, 1))
        edges = np.linspace(0, rows, count + 1).astype(np.int64)
        sizes = np.maximum(np.diff(edges) * nbytes // max(rows, 1), 1)
        return Spans(np.stack([edges[:-1], edges[1:], sizes], axis=1))

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """See `Table`."""
        begin, end, nbytes = place
        count = rows_within(end - begin, nbytes, most)
        return first_rows(self.batches(columns, begin, rows), count)
