"""Access to rows of Arrow record batches by number, through indices that select or shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.packed.grouping import grouped, starts_of
from fastio.runtime.lifecycle import new_lock
from fastio.sources.hugging_face.plain import bare
from fastio.sources.table.arrow import check_column, damaged
from fastio.sources.table.data import Mapped
from fastio.sources.table.leaves import children, is_list, with_types

# Rows that are read at a time if indices select them from anywhere; enough to be fast.
_TAKEN_ROWS = 4096
# Small batches are combined to groups of up to so many rows or bytes.
_GROUP_ROWS = 4096
_GROUP_BYTES = 256 << 10
_KEPT_BYTES = 1 << 30
# The largest size of string and list data with 32-bit offsets.
_NARROW_BYTES = 2**31 - 1
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class BatchRows(NamedTuple):
    """Those of the requested rows that lie in one record batch.

    `places`, int64 (n,), are their positions among the requested rows, and `local` their numbers
    within the batch.
    """

    batch: int
    places: NDArray[np.int64]
    local: NDArray[np.int64]


class Checked:
    """The columns of one file's record batches, each validated when it is first used. Thread-safe.

    The file is mapped, and other programs can write to it. So offsets are copied before they are
    validated, and the copies are kept, 1 GiB at most; values stay where they are.

    Args:
        name: The name of the file or data, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: dict[tuple[int, str], pa.Array] = {}
        self._left = _KEPT_BYTES
        self._lock = new_lock()

    def __reduce__(self) -> Any:
        return Checked, (self._name,)

    def column(self, batch: pa.RecordBatch, number: int, name: str) -> pa.Array:
        """Returns a column of record batch `number`, or raises ShardCorrupt if it is damaged."""
        key = number, name
        found = self._kept.get(key)
        if found is None:
            where = f"{self._name}, record batch {number}"
            try:
                found = _with_own_offsets(batch.column(name))
            except pa.ArrowException as error:
                raise damaged(error, name, where) from error
            check_column(found, name, where)
            # Columns that are not kept, for lack of room, are copied and validated again in each
            # read.
            with self._lock:
                if self._left > 0 and key not in self._kept:
                    self._left -= 8 * (batch.num_rows + 1)
                    self._kept[key] = found
        return found


def _with_own_offsets(array: pa.Array) -> pa.Array:
    """Returns an array whose offsets and indices are copies. It is not validated yet."""
    kind, types = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _with_own_offsets(array.storage))
    if types.is_dictionary(kind):
        indices = _rebuilt(array.indices, [])
        values = _with_own_offsets(array.dictionary)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered, safe=False)
    if types.is_struct(kind):
        fields = children(kind)
        inner = [_with_own_offsets(array.field(number)) for number in range(len(fields))]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask) if fields else array
    if is_list(kind):
        return _rebuilt(array, [_with_own_offsets(array.values)])
    return _rebuilt(array, []) if kind in _WIDE or kind in _WIDE.values() else array


def _rebuilt(array: pa.Array, inner: list[pa.Array]) -> pa.Array:
    """Returns an array with a copy of its second buffer and with other children."""
    kind, buffers = array.type, array.buffers()[: array.type.num_buffers]
    if len(buffers) > 1 and buffers[1] is not None:
        buffers[1] = pa.py_buffer(bytes(buffers[1]))
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, inner)


class StoredBatch(NamedTuple):
    """A record batch that was not validated yet, and its number in the file.

    Attributes:
        checked: Validates the file's columns.
        file: The mapped file that it lies in; None if it is in memory.
    """

    batch: pa.RecordBatch
    number: int
    checked: Checked
    file: Mapped | None = None

    def columns(self, names: Sequence[str]) -> pa.RecordBatch:
        """Returns some of its columns after validating them, or raises ShardCorrupt."""
        found = [self.checked.column(self.batch, self.number, name) for name in names]
        schema = pa.schema([self.batch.schema.field(name) for name in names])
        return pa.RecordBatch.from_arrays(found, schema=schema)


class SelectedRows:
    """Rows of record batches. Thread-safe.

    Methods that read columns raise ShardCorrupt if one is damaged or its file was truncated.

    Args:
        schema: The schema of the batches.
        batches: The batches in order. Empty ones are left out.
        indices: int64 (n,), the numbers of the selected rows; None for all.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Sequence[StoredBatch],
        indices: NDArray[np.int64] | None,
    ) -> None:
        self.schema = schema
        self._batches = [stored for stored in batches if stored.batch.num_rows]
        self.indices = indices
        counts = [stored.batch.num_rows for stored in self._batches]
        self._first = starts_of(counts)

    def __len__(self) -> int:
        return int(self._first[-1]) if self.indices is None else len(self.indices)

    @property
    def stored(self) -> int:
        """The number of rows of all batches."""
        return int(self._first[-1])

    def columns(self, number: int, names: Sequence[str]) -> pa.RecordBatch:
        """Returns some columns of a record batch after validating them."""
        stored = self._batches[number]
        if stored.file is not None:
            stored.file.check_size()
        return stored.columns(names)

    def by_batch(self, rows: NDArray[np.int64]) -> list[BatchRows]:
        """Groups rows, int64 (n,), by the record batch that they lie in, or raises IndexError."""
        rows = np.asarray(rows, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            bad = rows[(rows < 0) | (rows >= len(self))][0]
            raise IndexError(f"row {bad} is out of range: there are {len(self)} rows")
        stored = rows if self.indices is None else self.indices[rows]
        number = np.searchsorted(self._first, stored, side="right") - 1
        local = stored - self._first[number]
        return [BatchRows(n, places, local[places]) for n, places in grouped(number)]

    def take(self, columns: Sequence[str], rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Returns some columns of some rows, in the order of the rows, as they are stored.

        If the result may be too large for 32-bit offsets, strings and lists get 64-bit offsets.
        """
        found = self.by_batch(rows)
        if not found:
            empty = pa.RecordBatch.from_pylist([], schema=self.schema)
            return _bare(empty.select(list(columns)))
        files = self._files(found)
        for file in files:
            file.check_size()
        parts = [
            _taken(_bare(self._batches[part.batch].columns(columns)), part.local) for part in found
        ]
        for file in files:
            file.check()
        if len(parts) > 1 and sum(part.nbytes for part in parts) > _NARROW_BYTES:
            parts = [_wide(part) for part in parts]
        if len(parts) == 1 and bool((found[0].places[1:] > found[0].places[:-1]).all()):
            return parts[0]
        # Rows were taken batch by batch, and are put back in the requested order.
        places = np.concatenate([part.places for part in found])
        back = np.empty_like(places)
        back[places] = np.arange(len(places))
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0].take(pa.array(back))

    def groups(self) -> list[range]:
        """Returns all rows as ranges that are cheap to read; small record batches are combined."""
        if self.indices is not None:
            begins = range(0, len(self), _TAKEN_ROWS)
            return [range(begin, min(begin + _TAKEN_ROWS, len(self))) for begin in begins]
        found: list[range] = []
        begin = end = nbytes = 0
        for stored in self._batches:
            rows, size = stored.batch.num_rows, stored.batch.get_total_buffer_size()
            if end > begin and (end - begin + rows > _GROUP_ROWS or nbytes + size > _GROUP_BYTES):
                found.append(range(begin, end))
                begin, nbytes = end, 0
            end += rows
            nbytes += size
        return [*found, range(begin, end)] if end > begin else found

    def read(self, run: range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields some columns of consecutive rows as they are stored; no copy without indices."""
        if self.indices is not None:
            for begin in range(run.start, run.stop, _TAKEN_ROWS):
                end = min(begin + _TAKEN_ROWS, run.stop)
                yield self.take(columns, np.arange(begin, end, dtype=np.int64))
            return
        number = int(np.searchsorted(self._first, run.start, side="right")) - 1
        done = run.start
        while done < run.stop:
            skip = done - int(self._first[number])
            batch = self.columns(number, columns)
            part = batch.slice(skip, min(batch.num_rows - skip, run.stop - done))
            yield _bare(part)
            file = self._batches[number].file
            if file is not None:
                file.check()  # nothing of it was copied before
            done += part.num_rows
            number += 1

    def nbytes(self, run: range, columns: Sequence[str]) -> int:
        """Returns the approximate size of some columns of consecutive rows."""
        if not columns or not self.stored:
            return 0
        # With indices, rows may come from anywhere, so the average of all batches is used.
        first, last, rows = 0, len(self._batches), self.stored
        if self.indices is None:
            first = int(np.searchsorted(self._first, run.start, side="right")) - 1
            last = int(np.searchsorted(self._first, run.stop, side="left"))
            rows = int(self._first[last] - self._first[first])
        # Not `nbytes`, which walks offsets that nobody has checked yet.
        total = sum(
            stored.batch.select(list(columns)).get_total_buffer_size()
            for stored in self._batches[first:last]
        )
        return int(total * len(run) // max(rows, 1))

    def _files(self, parts: Sequence[BatchRows]) -> list[Mapped]:
        """Returns the files that some rows lie in."""
        files = {id(file): file for p in parts if (file := self._batches[p.batch].file) is not None}
        return list(files.values())


def _bare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch whose columns are as they are stored, without metadata."""
    names = batch.schema.names
    return pa.RecordBatch.from_arrays([bare(column) for column in batch.columns], names)


def _taken(batch: pa.RecordBatch, local: NDArray[np.int64]) -> pa.RecordBatch:
    """Returns rows of a batch, which may occur several times."""
    most = int(np.unique(local, return_counts=True)[1].max())
    if most > 1 and batch.nbytes * most > _NARROW_BYTES:
        batch = _wide(batch)
    return batch.take(pa.array(local))


def _wide(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch whose strings and lists have offsets of 64 bits."""
    columns = [
        column.cast(with_types(column.type, _WIDE, wide_lists=True)) for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)
