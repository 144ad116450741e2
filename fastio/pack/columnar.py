"""Encodes tables: pieces of thousands of rows at a time, without Python code per row.

A shard's fixed-width fields come to it as records that are filled where they will lie; the fields
of variable width as bytes and offsets. The row that makes a shard's data reach its size is its
last: found from the offsets, it depends on rows alone, not on files or row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import PackError
from fastio.pack.cells import bytes_array, record_array, token_array
from fastio.pack.journal import Journal, ShardEnd
from fastio.pack.packer import About, Filled
from fastio.pack.statistics import Moments, described, from_json, moments, to_json
from fastio.pack.tables import RowSource
from fastio.packed import FORMAT_VERSION, ShardEntry
from fastio.schema import Array, Schema, Tokens, field_columns
from fastio.sources.table.columns import Column
from fastio.sources.table.tables import Piece
from fastio.sources.table.values import Ragged

_DEPTH_PER_WORKER = 4


@dataclass(frozen=True)
class EncodedRows:
    """Rows of a table as fields.

    Attributes:
        count: The number of rows.
        records: (count,) of the layout's dtype; None without fixed-width fields.
        ragged: The fields of variable width.
        columns: The source's columns.
        moments: The statistics of each column over all rows.
    """

    count: int
    records: NDArray[Any] | None
    ragged: dict[str, Ragged]
    columns: Sequence[Column]
    moments: Sequence[Moments]


class TableEncoder:
    """Converts a table's rows to fields, and collects them to shards; see `packer.Encoder`.

    Args:
        source: The rows.
        shard_bytes: The row with which a shard's data reaches this size is the shard's last.
        workers: The number of threads.
    """

    def __init__(self, source: RowSource, shard_bytes: int, workers: int) -> None:
        self.schema = source.schema
        self.unit = source.unit
        self.total = source.total
        self.position = 0
        self.skipped = list(source.skipped)
        # Conversion releases the interpreter lock for as long as arrays are copied.
        self.workers = workers if workers > 1 else 0
        self.depth = self.workers * _DEPTH_PER_WORKER
        self._source = source
        self._layout = source.schema.record_layout
        self._shard_bytes = shard_bytes
        self._stamp = source.stamp
        self._records = _Records(source.schema)
        self._held: list[dict[str, Ragged]] = []
        self._held_bytes = 0
        self._parts: list[Moments] = []
        self._sums: list[Moments] = []

    def identity(self) -> Mapping[str, Any]:
        """See `packer.Encoder`."""
        return {
            "format_version": FORMAT_VERSION,
            "shard_size": self._shard_bytes,
            "source": self._source.name,
            **self._source.identity,
            "schema": self.schema.to_json(),
        }

    def parts(self, journal: Journal, progress: bool) -> Iterator[Piece]:
        """See `packer.Encoder`."""
        for done in (shard.end for shard in journal.finished):
            if done.source != self._stamp:
                raise PackError(
                    f"cannot resume: {self._source.name} has changed since its first "
                    f"{done.position} rows were packed (files added, removed, renamed or "
                    "modified); start again with overwrite"
                )
            self.position = done.position
            self._sums = _merged(self._sums, from_json(done.statistics or []))
        return self._source.pieces(self.position)

    def memory_bytes(self, part: Piece) -> int:
        """See `packer.Encoder`."""
        nbytes = 0 if self._layout is None else self._layout.nbytes * part.rows
        if self._layout is None or len(self._layout.offsets) < len(self.schema.fields):
            nbytes += sum(batch.nbytes for _, batch in part.parts)
        return nbytes

    def encode(self, part: Piece, hold: Callable[[int], None]) -> EncodedRows:
        """See `packer.Encoder`. Raises SchemaError if a value cannot be stored."""
        records = None
        if self._layout is not None:
            # The bytes between fields are zero.
            records = np.zeros(part.rows, self._layout.dtype)
        ragged: list[dict[str, Ragged]] = []
        columns: list[Sequence[Column]] = []
        begin = 0
        for place, batch in part.parts:
            end = begin + batch.num_rows
            rows = None if records is None else records[begin:end]
            out = {} if rows is None else {name: rows[name] for name in rows.dtype.names or ()}
            converted = self._source.convert(batch, place, out)
            fields = converted.fields.items()
            ragged.append({name: rows for name, rows in fields if isinstance(rows, Ragged)})
            columns.append(converted.columns)
            begin = end
        joined = {name: Ragged.joined([rows[name] for rows in ragged]) for name in ragged[0]}
        counts = [batch.num_rows for _, batch in part.parts]
        same = [_joined(parts, counts) for parts in zip(*columns, strict=True)]
        # Computed here in threads, and again in `fill` only where a shard ends in between.
        sums = [moments(column, 0, begin) for column in same]
        return EncodedRows(begin, records, joined, same, sums)

    def encoded_bytes(self, encoded: EncodedRows) -> int:
        """See `packer.Encoder`."""
        fixed = 0 if encoded.records is None else 2 * encoded.records.nbytes
        return int(fixed + sum(rows.values.nbytes for rows in encoded.ragged.values()))

    def fill(self, encoded: EncodedRows) -> Iterator[Filled]:
        """See `packer.Encoder`."""
        begin = 0
        while begin < encoded.count:
            end, nbytes = self._cut(encoded, begin)
            self._hold(encoded, begin, end)
            self._held_bytes += nbytes
            if self._held_bytes >= self._shard_bytes:
                yield self._filled(last=False)
                self._clear()
            begin = end

    def rest(self) -> Filled | None:
        """See `packer.Encoder`."""
        return self._filled(last=True) if self._held else None

    def about(self, entries: list[ShardEntry]) -> About:
        """See `packer.Encoder`."""
        source = self._source
        if not entries:
            raise PackError(f"there is nothing to pack: {source.name} has no rows")
        texts = frozenset(
            name for name, kind in self.schema.fields.items() if not hasattr(kind, "dtype")
        )
        statistics = described(source.columns, self._sums, texts, self.schema.vocabularies)
        packing = {"shard_bytes": self._shard_bytes, "source": source.name, "skipped": 0}
        return About({**packing, **source.packing()}, None, statistics or None)

    def _cut(self, rows: EncodedRows, begin: int) -> tuple[int, int]:
        """Returns where the shard that is being filled ends in these rows, and the bytes added."""
        fixed = 0 if rows.records is None else rows.records.dtype.itemsize
        count = rows.count - begin
        ends: Any = fixed * np.arange(1, count + 1, dtype=np.int64)
        for name, ragged in rows.ragged.items():
            item, extra = ragged.values.itemsize, _ragged_overhead(self.schema, name)
            ends += (ragged.offsets[begin + 1 :] - ragged.offsets[begin]) * item
            ends += extra * np.arange(1, count + 1, dtype=np.int64)
        place = int(np.searchsorted(ends, self._shard_bytes - self._held_bytes))
        last = min(place, count - 1)
        return begin + last + 1, int(ends[last])

    def _hold(self, rows: EncodedRows, begin: int, end: int) -> None:
        """Adds rows [begin, end) to the shard that is being filled."""
        self.position += end - begin
        if end - begin == rows.count:
            parts = list(rows.moments)
        else:
            parts = [moments(column, begin, end) for column in rows.columns]
        self._parts = _merged(self._parts, parts)
        if rows.records is not None:
            self._records.append(rows.records[begin:end])
        self._held.append({name: part.slice(begin, end) for name, part in rows.ragged.items()})

    def _filled(self, last: bool) -> Filled:
        """Returns the shard that is held. Its columns are valid until `_clear`."""
        self._sums = _merged(self._sums, self._parts)
        arrays = []
        if self._layout is not None:
            arrays.append(record_array(self._records.all()))
        for name in self._held[0]:
            rows = Ragged.joined([part[name] for part in self._held])
            arrays += _ragged_arrays(self.schema, name, rows)
        statistics = to_json(self._parts)
        return Filled(arrays, ShardEnd(self.position, self._stamp, last, statistics=statistics))

    def _clear(self) -> None:
        self._held, self._held_bytes, self._parts = [], 0, []
        self._records.clear()


def _merged(first: list[Moments], second: list[Moments]) -> list[Moments]:
    """Returns the statistics of two parts together; the first may be that of nothing."""
    return [a.merged(b) for a, b in zip(first, second, strict=True)] if first else second


class _Records:
    """The records of the shard that is being filled, in memory that is reused for all shards.

    Reused memory costs a third of new memory, whose pages the system has to zero.
    """

    def __init__(self, schema: Schema) -> None:
        layout = schema.record_layout
        self._memory = np.empty(0, np.uint8 if layout is None else layout.dtype)
        self._count = 0

    def append(self, records: NDArray[Any]) -> None:
        """Copies rows in."""
        end = self._count + len(records)
        if end > len(self._memory):
            grown = np.empty(max(end, 2 * len(self._memory)), self._memory.dtype)
            grown.view(np.uint8)[: self._nbytes] = self._memory.view(np.uint8)[: self._nbytes]
            self._memory = grown
        width = self._memory.dtype.itemsize
        # As bytes: a copy of structs would leave what is between fields as it is.
        self._memory.view(np.uint8)[self._nbytes : end * width] = records.view(np.uint8)
        self._count = end

    def all(self) -> NDArray[Any]:
        """Returns the rows, without a copy."""
        return self._memory[: self._count]

    def clear(self) -> None:
        """Starts again; the memory that `all` returned is overwritten."""
        self._count = 0

    @property
    def _nbytes(self) -> int:
        return self._count * self._memory.dtype.itemsize


def _joined(parts: Sequence[Column], counts: Sequence[int]) -> Column:
    """Returns one column of several parts, given the number of rows of each."""
    first = parts[0]
    if len(parts) == 1:
        return first
    values: Any = None
    shapes: list[tuple[int, ...]] = [(count,) for count in counts]
    if isinstance(first.values, Ragged):
        rows = [part.values for part in parts if isinstance(part.values, Ragged)]
        values = Ragged.joined(rows)
        shapes = [part.values.shape for part in rows]
    elif first.values is not None:
        arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
        values = np.concatenate(arrays)
        shapes = [array.shape for array in arrays]
    missing = _joined_masks([part.missing for part in parts], shapes)
    nulls = _joined_masks([part.nulls for part in parts], [(count,) for count in counts])
    return Column(first.field, first.name, values, missing, nulls)


def _joined_masks(
    masks: Sequence[NDArray[np.bool_] | None], shapes: Sequence[tuple[int, ...]]
) -> NDArray[np.bool_] | None:
    """Returns masks one after another; None stands for a mask of the shape that is all False."""
    if all(mask is None for mask in masks):
        return None
    return np.concatenate(
        [
            np.zeros(shape, np.bool_) if mask is None else mask
            for mask, shape in zip(masks, shapes, strict=True)
        ]
    )


def _ragged_arrays(schema: Schema, name: str, rows: Ragged) -> list[pa.Array]:
    """Returns the columns of a field of variable width."""
    kind = schema.fields[name]
    types = [type_ for _, type_ in field_columns(name, kind)]
    values = np.ascontiguousarray(rows.values)
    if isinstance(kind, Tokens):
        return [token_array(types[0], rows.offsets, values)]
    offsets = np.ascontiguousarray(rows.offsets * values.itemsize)
    arrays = [bytes_array(types[0], offsets, values.view(np.uint8))]
    if isinstance(kind, Array):
        bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32))
        lengths = pa.array(np.diff(rows.offsets))
        arrays.append(pa.ListArray.from_arrays(bounds, lengths, type=types[1]))
    return arrays


def _ragged_overhead(schema: Schema, name: str) -> int:
    """Returns the bytes of a row of variable width besides its data: offsets, and the shape."""
    return 8 + (4 + 8 if isinstance(schema.fields[name], Array) else 0)
