"""Checks of Arrow data from untrusted writers, before anything follows its offsets.

Arrow uses a file's buffers as they are and follows offsets that are negative or that lead outside
their buffer. `Checks` has Arrow validate each column of each record batch in full when it is first
used, including children and dictionaries, and remembers what it has validated. Strings that are not
UTF-8 are not refused here: the code that decodes them knows the row and gives a better message.

Compressed buffers state their decompressed size, which is allocated before anything is verified. A
record batch may therefore take `_MOST_FREELY` bytes, or `_MOST_RATIO` times its compressed size if
that is more, and never more than half of the available memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

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
    decompressed_bytes,
    footer_length,
    is_compressed,
    message_head,
    messages,
)
from fastio.runtime.memory import available_memory
from fastio.sources.table.data import Data, ForwardFile, Mapped
from fastio.sources.table.leaves import least_bits, with_types
from fastio.sources.table.objects import TableFile, as_file
from fastio.sources.table.reading import Batches, each_batch, reading, skipped_to

_MOST_FREELY = 256 << 20
_MOST_RATIO = 1000
_MOST_BATCH = 1 << 40  # decompressed bytes of a record batch, whatever its buffers state
# Types of the same layout that may hold any bytes.
_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
_ALWAYS = 16 << 20  # bytes that are allowed without asking for the available memory


class Checks:
    """Validates columns of a file's record batches, each once in a process. Thread-safe.

    Args:
        name: The name of the file or data, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._done: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Checks, (self._name,)

    def check(self, batch: pa.RecordBatch, number: int, columns: Iterable[str]) -> None:
        """Validates columns of record batch `number`, a whole one, that were not validated before.

        Raises:
            ShardCorrupt: If a column's buffers are invalid. The message names column and batch.
        """
        for name in columns:
            key = number, name
            if key in self._done:
                continue
            check_column(batch.column(name), name, f"{self._name}, record batch {number}")
            with self._lock:
                self._done.add(key)


def check_column(array: pa.Array, name: str, where: str) -> None:
    """Validates a column, or raises ShardCorrupt, which names it and `where` it is."""
    problem = _problem(array)
    if problem is not None:
        raise ShardCorrupt(
            f"{where}: column {name!r} is damaged: {' '.join(str(problem).split())}; write the "
            "file again, or do not use it if you do not know who wrote it"
        )


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


def check_stream(data: memoryview, where: str) -> None:
    """Applies `check_decompressed` to every message of an Arrow stream in memory."""
    try:
        for number, (metadata, body) in enumerate(messages(data)):
            check_decompressed(metadata, body, f"{where}, message {number}")
    except ValueError as error:
        if isinstance(error, ShardCorrupt):
            raise
        raise ShardCorrupt(f"{where}: {error}; write the file again") from error


class CheckedStream(ForwardFile):
    """An Arrow stream for `pyarrow.PythonFile`, whose messages are checked before Arrow reads them.

    `file.read` gives the stream's bytes, and `where` names it in messages.
    """

    def __init__(self, file: Any, where: str) -> None:
        super().__init__()
        self._file = file
        self._where = where
        self._number = 0

    def _next(self) -> memoryview:
        """Reads and checks the next message."""
        begin = bytes(self._file.read(8))
        try:
            head = message_head(memoryview(begin))
            if head is None:
                return memoryview(begin)
            metadata = begin + bytes(self._file.read(sum(head) - len(begin)))
            body = bytes(self._file.read(body_bytes(memoryview(metadata))))
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        where = f"{self._where}, message {self._number}"
        check_decompressed(memoryview(metadata), memoryview(body), where)
        self._number += 1
        return memoryview(metadata + body)


def _problem(array: pa.Array) -> pa.ArrowException | None:
    try:
        array.validate(full=True)
        return None
    except pa.ArrowException as error:
        if "UTF8" not in str(error):
            return error
        first = error
    try:  # only a string is not UTF-8: check everything else with the strings as bytes
        array.view(with_types(array.type, _AS_BYTES)).validate(full=True)
        return None
    except pa.ArrowNotImplementedError:
        return first
    except pa.ArrowException as error:
        return error


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
        """Returns data that has a record batch and the file's footer; see `TableFile.fetch`."""
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
        yield from skipped_to(self.name, batches, start, columns, self.checks.check)

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
        for block, rows, head in zip(self._blocks, self.batch_rows, heads, strict=True):
            self._check_rows(rows, block.body, is_compressed(_view(known, *head)))
        self._footer = data if self.file.remote else None
        self.rows = sum(self.batch_rows)

    def _check_rows(self, rows: int, body: int, compressed: bool) -> None:
        """Refuses a record batch that states more rows than its bytes can hold."""
        most = _MOST_BATCH if compressed else body  # its buffers are checked when it is read
        if rows * sum(least_bits(column.type) for column in self.schema) > 8 * most:
            raise ValueError(f"a record batch of {body:,} bytes states {rows:,} rows")

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
        for batch in each_batch(iter(reader), self.name):
            if file is not None:
                file.check_size()
            yield batch
            if file is not None:
                file.check()  # nothing of it was copied before


def _is_file(data: Data, size: int) -> bool:
    """Returns whether an Arrow file is no stream, by the magic number at its end or beginning."""
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


class MemoryTable:
    """An Arrow table in memory, or a stream of record batches, which can be read once."""

    is_text = False

    def __init__(self, name: str, data: pa.Table | pa.RecordBatchReader) -> None:
        self.name = name
        self.schema: pa.Schema = data.schema
        self.rows: int | None = data.num_rows if isinstance(data, pa.Table) else None
        self._data = data
        self._checks = Checks(name)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        batches = iter(self._data if self.rows is None else self._data.to_batches())
        yield from skipped_to(self.name, batches, start, columns, self._checks.check)
