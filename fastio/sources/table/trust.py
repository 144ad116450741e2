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
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from fastio.errors import ShardCorrupt
from fastio.packed.metadata import (
    body_bytes,
    decompressed_bytes,
    message_head,
    messages,
)
from fastio.runtime.memory import available_memory
from fastio.sources.table.spans import ForwardFile

_MOST_FREELY = 256 << 20
_MOST_RATIO = 1000
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
        """Validates columns of a record batch that have not been validated before.

        Args:
            batch: The whole record batch, not a slice.
            number: The number of the batch.
            columns: The names of the columns that are used.

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
    """Validates one column of a record batch.

    Args:
        array: The column.
        name: The column's name.
        where: The name of the batch, for messages.

    Raises:
        ShardCorrupt: If the column's buffers are invalid.
    """
    problem = _problem(array)
    if problem is not None:
        raise ShardCorrupt(
            f"{where}: column {name!r} is damaged: {' '.join(str(problem).split())}; write the "
            "file again, or do not use it if you do not know who wrote it"
        )


def check_decompressed(metadata: memoryview, body: memoryview, where: str) -> None:
    """Refuses a message whose compressed buffers state an implausibly large decompressed size.

    Args:
        metadata, body: The parts of the message.
        where: The name of the message, for error messages.

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

    Args:
        file: A file object; its `read` gives the stream's bytes.
        where: The name of the stream, for messages.
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
        array.view(_as_bytes(array.type)).validate(full=True)
        return None
    except pa.ArrowNotImplementedError:
        return first
    except pa.ArrowException as error:
        return error


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """Returns a type of the same layout, with binary types in place of string types."""
    types = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_field_as_bytes(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([_field_as_bytes(kind.field(n)) for n in range(kind.num_fields)])
    return kind


def _field_as_bytes(field: pa.Field) -> pa.Field:
    return field.with_type(_as_bytes(field.type))
