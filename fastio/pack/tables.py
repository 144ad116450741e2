"""Packs tables and text: pieces of thousands of rows at a time, without Python code per row.

A `RowSource` gives the rows of tables, or of text as tokens; `TableEncoder` makes shards of them.
A shard's fixed-width fields come to it as records that are filled where they will lie; the fields
of variable width as bytes and offsets. A shard ends with the row that reaches its size. The encoder
finds this row from the offsets, so that it depends on rows only, not on files or row groups. Each
shard is a unit. If all fields have fixed widths, the number of its rows is known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import PackError, SchemaError
from fastio.pack.cells import record_array, variable_array
from fastio.pack.encoder import About, Filled
from fastio.pack.items import AGAIN
from fastio.pack.journal import Plan, UnitEnd
from fastio.pack.ray_data import RayTable, is_ray_dataset
from fastio.pack.statistics import Moments, described, from_json, moments, to_json
from fastio.packed import FORMAT_VERSION, ShardTable
from fastio.schema import Array, Schema, field_columns, is_fixed_width, row_bytes
from fastio.sources.table.arrow import MemoryTable
from fastio.sources.table.columns import Column, Converted
from fastio.sources.table.filters import Filter
from fastio.sources.table.opening import Opened, joined
from fastio.sources.table.options import TableOptions
from fastio.sources.table.reading import Origin, Table
from fastio.sources.table.tables import Piece
from fastio.sources.table.values import Ragged

_DEPTH_PER_WORKER = 4
# Rows that are converted at a time. Shards' statistics are summed up in pieces of it, so that it
# is a part of what makes a dataset's bytes.
PIECE_ROWS = 32768

Convert = Callable[[pa.RecordBatch, Origin, Mapping[str, NDArray[Any]] | None], Converted]


@dataclass(frozen=True)
class RowSource:
    """Tables, or text: rows that are read by the thousand.

    Attributes:
        name: What the manifest says the dataset was made of; no absolute path.
        schema: The fields.
        total: The number of rows, or None if it is not known beforehand.
        columns: The field and name of each source column, in the order of `Converted.columns`.
        convert: Returns rows as fields; called by several threads. Raises SchemaError if a value
            cannot be stored.
        pieces: Yields the rows from a number on, in pieces that are the same for any number.
        stamp: A hash that changes if a file does; a constant for data in memory.
        identity: What the dataset's bytes depend on beside the files, as JSON values.
        packing: Returns what the manifest says of how it was made, after the last piece.
        counted: What the rows are called: "rows" or "documents".
        skipped: (name, reason) of the files that were left out.
        can_skip: Whether damaged files may be left out.
        sums: The statistics of each column over the existing rows, if rows are appended; empty
            otherwise.
    """

    name: str
    schema: Schema
    total: int | None
    columns: Sequence[tuple[str, str]]
    convert: Convert
    pieces: Callable[[int], Iterator[Piece]]
    stamp: str
    identity: Mapping[str, Any]
    packing: Callable[[], Mapping[str, Any]]
    counted: str = "rows"
    skipped: Sequence[tuple[str, str]] = ()
    can_skip: bool = False
    sums: Sequence[Moments] = ()


def table_source(opened: Opened, options: TableOptions, name: str) -> RowSource:
    """Returns tables as a source.

    Args:
        opened: The tables, and the rows that are wanted. Files whose damage is found later cannot
            be left out, because resuming counts rows.
        options: Which columns become which fields.
        name: As for `RowSource`.
    """
    tables = joined(opened, options)
    filters = {} if opened.wanted is None else {"filters": str(opened.wanted)}
    identity = {"table": {**options.to_json(), **filters}}
    return RowSource(
        name,
        tables.schema,
        tables.total,
        tables.conversion.columns(),
        tables.conversion.convert,
        lambda start: tables.pieces(start, PIECE_ROWS),
        opened.stamp or xxhash.xxh3_64().hexdigest(),
        identity,
        lambda: {**identity, "skipped": len(opened.skipped)},
        skipped=opened.skipped,
        can_skip=bool(opened.files),
    )


def open_memory(src: Any, filters: Any = None) -> Opened | None:
    """Returns Arrow data in memory as a table, or None for other objects; see `memory_table`.

    Raises:
        SchemaError: As for `Filter.of`, or a stream has dictionary-encoded strings.
    """
    name = type(src).__name__
    arrow = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
    if not isinstance(src, arrow) and hasattr(src, "__arrow_c_stream__"):
        src = pa.RecordBatchReader.from_stream(src).read_all()
    table = memory_table(src, name)
    if table is None:
        return None
    for column in table.schema if table.rows is None else ():
        if pa.types.is_dictionary(column.type):
            raise SchemaError(
                f"{name}: column {column.name!r} is dictionary-encoded, and its dictionary has "
                "to be known first: give a Table (reader.read_all()), or files"
            )
    return Opened((), [table], Filter.of(filters, table.schema, name))


def memory_table(src: Any, name: str) -> Table | None:
    """Returns Arrow data as a table, or None for other objects.

    Args:
        src: A Table, RecordBatch or RecordBatchReader, or an object that gives an Arrow stream (a
            pandas or polars DataFrame), or a ray.data.Dataset.
        name: The name of the table in messages.
    """
    if is_ray_dataset(src):
        return RayTable(src)
    if isinstance(src, pa.RecordBatch):
        src = pa.Table.from_batches([src])
    if not isinstance(src, (pa.Table, pa.RecordBatchReader)):
        if not hasattr(src, "__arrow_c_stream__"):
            return None
        src = pa.RecordBatchReader.from_stream(src)
    return MemoryTable(name, src)


# --- Encoding -------------------------------------------------------------------------------------


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
    """Converts a table's rows to fields, and collects them to shards; see `encoder.Encoder`.

    Args:
        source: The rows.
        shard_bytes: The row with which a shard's data reaches this size is the shard's last.
        workers: The number of threads.
    """

    def __init__(self, source: RowSource, shard_bytes: int, workers: int) -> None:
        self.schema = source.schema
        self.counted = source.counted
        self.total = source.total
        self.position = 0
        self.skipped = list(source.skipped)
        # Conversion releases the interpreter lock for as long as arrays are copied.
        self.workers = workers if workers > 1 else 0
        self.depth = self.workers * _DEPTH_PER_WORKER
        self.packing = source.packing
        self._source = source
        self._names = {field: len(words) for field, words in self.schema.vocabularies.items()}
        if self.schema.class_field is not None:
            self._names[self.schema.class_field] = len(self.schema.classes or ())
        self._layout = source.schema.record_layout
        self._shard_bytes = shard_bytes
        self._stamp = source.stamp
        self._records = _Records()
        self._held: list[dict[str, Ragged]] = []
        self._held_bytes = 0
        self._parts: list[Moments] = []
        self._sums = list(source.sums)

    def identity(self) -> Mapping[str, Any]:
        """See `encoder.Encoder`."""
        return {
            "format_version": FORMAT_VERSION,
            "shard_size": self._shard_bytes,
            "source": self._source.name,
            **self._source.identity,
            "schema": self.schema.to_json(),
        }

    def plan(self, progress: bool) -> Plan:
        """See `encoder.Encoder`. If all rows have the same size, the plan says how many fit."""
        layout = self._layout
        if layout is None or not all(map(is_fixed_width, self.schema.fields.values())):
            return Plan()
        return Plan(unit_rows=math.ceil(self._shard_bytes / layout.dtype.itemsize))

    def begin(self, plan: Plan, finished: Iterable[UnitEnd]) -> Iterator[Piece]:
        """See `encoder.Encoder`."""
        for done in finished:
            if done.source != self._stamp:
                raise PackError(
                    f"cannot resume: {self._source.name} has changed since its first "
                    f"{done.position} rows were packed (files added, removed, renamed or "
                    f"modified); {AGAIN}"
                )
            self.count(done)
        return self._source.pieces(self.position)

    def parts_of_unit(self, plan: Plan, number: int) -> Iterator[Piece]:
        """See `encoder.Encoder`."""
        rows = plan.unit_rows or 0
        self.position = number * rows
        end = self.position + rows
        for piece in self._source.pieces(self.position):
            yield piece.until(end)
            if piece.first_row + piece.rows >= end:
                return

    def count(self, end: UnitEnd) -> None:
        """See `encoder.Encoder`."""
        self.position = end.position
        self._sums = _merged(self._sums, from_json(end.statistics or []))

    def memory_bytes(self, part: Piece) -> int:
        """See `encoder.Encoder`."""
        nbytes = 0 if self._layout is None else self._layout.nbytes * part.rows
        if self._layout is None or len(self._layout.offsets) < len(self.schema.fields):
            nbytes += sum(batch.nbytes for _, batch in part.parts)
        return nbytes

    def encode(self, part: Piece, hold: Callable[[int], None]) -> EncodedRows:
        """See `encoder.Encoder`. Raises SchemaError if a value cannot be stored."""
        records = None
        if self._layout is not None:
            # The bytes between fields are zero.
            records = np.zeros(part.rows, self._layout.dtype)
        ragged: list[dict[str, Ragged]] = []
        columns: list[Sequence[Column]] = []
        begin = 0
        for origin, batch in part.parts:
            end = begin + batch.num_rows
            rows = None if records is None else records[begin:end]
            out = {} if rows is None else {name: rows[name] for name in rows.dtype.names or ()}
            converted = self._source.convert(batch, origin, out)
            check_numbers(self._names, converted, origin)
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
        """See `encoder.Encoder`."""
        fixed = 0 if encoded.records is None else 2 * encoded.records.nbytes
        return int(fixed + sum(rows.values.nbytes for rows in encoded.ragged.values()))

    def fill(self, encoded: EncodedRows) -> Iterator[Filled]:
        """See `encoder.Encoder`."""
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
        """See `encoder.Encoder`."""
        return self._filled(last=True) if self._held else None

    def about(self, shards: ShardTable) -> About:
        """See `encoder.Encoder`."""
        source = self._source
        if not shards:
            raise PackError(f"there is nothing to pack: {source.name} has no rows")
        texts = frozenset(
            name for name, kind in self.schema.fields.items() if not hasattr(kind, "dtype")
        )
        statistics = described(source.columns, self._sums, texts, self.schema.vocabularies)
        packing = {"shard_bytes": self._shard_bytes, "source": source.name, "skipped": 0}
        return About({**packing, **self.packing()}, None, statistics or None)

    def _cut(self, rows: EncodedRows, begin: int) -> tuple[int, int]:
        """Returns where the shard that is being filled ends in these rows, and the bytes added."""
        fixed = 0 if rows.records is None else rows.records.dtype.itemsize
        count = rows.count - begin
        ends: Any = fixed * np.arange(1, count + 1, dtype=np.int64)
        for name, ragged in rows.ragged.items():
            item, field = ragged.values.itemsize, self.schema.fields[name]
            extra = row_bytes(name, field) + (8 if isinstance(field, Array) else 0)  # its only axis
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
            arrays.append(record_array(self._records.all(self._layout.dtype)))
        for name in self._held[0]:
            rows = Ragged.joined([part[name] for part in self._held])
            field = self.schema.fields[name]
            arrays.append(variable_array(name, field, rows))
            if isinstance(field, Array):  # whose shape is its length
                bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32))
                lengths, kind = pa.array(np.diff(rows.offsets)), field_columns(name, field)[1][1]
                arrays.append(pa.ListArray.from_arrays(bounds, lengths, type=kind))
        statistics = to_json(self._parts)
        return Filled(arrays, UnitEnd(self.position, self._stamp, last, statistics=statistics))

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

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._nbytes = 0

    def append(self, records: NDArray[Any]) -> None:
        """Copies rows in."""
        # As bytes: a copy of structs would leave what is between fields as it is.
        data = records.view(np.uint8)
        end = self._nbytes + len(data)
        if end > len(self._memory):
            grown = np.empty(max(end, 2 * len(self._memory)), np.uint8)
            grown[: self._nbytes] = self._memory[: self._nbytes]
            self._memory = grown
        self._memory[self._nbytes : end] = data
        self._nbytes = end

    def all(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns the rows, without a copy; they are valid until the next `append`."""
        return self._memory[: self._nbytes].view(dtype)

    def clear(self) -> None:
        """Starts again; the memory that `all` returned is overwritten."""
        self._nbytes = 0


def check_numbers(names: Mapping[str, int], converted: Converted, origin: Origin) -> None:
    """Compares the numbers of classes and words with how many there are.

    Args:
        names: For each field of such numbers, how many names it has.
        converted: The rows.
        origin: Where they come from.

    Raises:
        SchemaError: A number has no name. Negative numbers stand for no class.
    """
    for field, count in names.items():
        values = converted.fields[field]
        if isinstance(values, np.ndarray) and values.size and values.max() >= count:
            bad = (values >= count).reshape(len(values), -1).any(axis=1)
            row = int(np.argmax(bad))
            raise SchemaError(
                f"{origin.column(field)}, row {origin.row(row)}: no class or word has the number "
                f"{values[row].max()}: there are {count}, numbered from 0. Correct the number or "
                "the names, or use -1 for a row without a class"
            )


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
