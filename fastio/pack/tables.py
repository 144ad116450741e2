"""Packs tables and text: pieces of thousands of rows at a time, without Python code per row.

A `RowSource` gives the rows of tables, or of text as tokens; `TableEncoder` makes shards of them.
A shard's fixed-width fields come to it as records that are filled where they will lie; the fields
of variable width as bytes and offsets. A shard ends with the row that reaches its size, which the
encoder finds from the offsets.

If all fields have fixed widths, all units have the same number of rows. Other tables and text are
divided at row groups, record batches or line breaks (`fastio.sources.table.cuts`) into units of
about the size of a shard. What can only be read from its beginning has a unit for each shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import FastioError, PackError, SchemaError
from fastio.pack.cells import fixed_array, record_array, variable_array
from fastio.pack.encoder import LARGEST_UNIT, About, Filled
from fastio.pack.items import AGAIN, spread
from fastio.pack.journal import Plan, UnitEnd
from fastio.pack.row_sources import RowSource
from fastio.pack.statistics import Moments, described, from_json, moments, to_json
from fastio.packed import FORMAT_VERSION, ShardTable
from fastio.packed.ipc import number_array
from fastio.schema import Array, field_columns, is_fixed_width, row_bytes
from fastio.sources.table.columns import Column, Converted
from fastio.sources.table.cuts import Cut
from fastio.sources.table.reading import Origin
from fastio.sources.table.tables import Piece
from fastio.sources.table.values import Ragged

_DEPTH_PER_WORKER = 4
# How much is packed to learn how many bytes of a source make a shard: units, and bytes of each.
_TRIED_UNITS, _TRIED_BYTES = 8, 256 << 10
_MOST_FACTOR = 64  # by which the bytes of a shard and of its source may differ


@dataclass(frozen=True)
class EncodedRows:
    """Rows of a table as fields.

    Attributes:
        count: The number of rows.
        records: (count,) of the layout's dtype; None without fixed-width fields.
        ragged: The fields of variable width.
        columns: The source's columns.
        moments: The statistics of each column over all rows.
        left_out, ends_unit: As for `Piece`.
    """

    count: int
    records: NDArray[Any] | None
    ragged: dict[str, Ragged]
    columns: Sequence[Column]
    moments: Sequence[Moments]
    left_out: int = 0
    ends_unit: bool = False


class TableEncoder:
    """Converts a table's rows to fields, and collects them to shards; see `encoder.Encoder`.

    Args:
        source: The rows.
        shard_bytes: The size of a shard. In a unit that is not known beforehand, the row with which
            a shard's data reaches this size is the shard's last.
        workers: The number of threads.

    Attributes:
        left_out: The number of documents without text in the finished units.
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
        self.left_out = 0
        self._source = source
        self._names = {field: len(words) for field, words in self.schema.vocabularies.items()}
        if self.schema.class_field is not None:
            self._names[self.schema.class_field] = len(self.schema.classes or ())
        self._layout = source.schema.layout_of_fixed()
        self._shard_bytes = shard_bytes
        self._stamp = source.stamp
        self._records = _Records()
        self._held: list[dict[str, Ragged]] = []
        self._held_bytes = 0
        self._parts: list[Moments] = []
        self._sums = list(source.sums)
        self._left_out = 0  # in the unit that is being filled
        self._begin = 0  # the position where it begins
        self._unit = 0  # its number
        self._cut: Cut | None = None
        self._unit_bytes = 0

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
        layout, rows = self._layout, None
        if layout is not None and all(map(is_fixed_width, self.schema.fields.values())):
            rows = math.ceil(self._shard_bytes / layout.dtype.itemsize)
        if rows is None or self.total is None:
            nbytes = self._bytes_of_units()
            if nbytes is not None:
                return Plan(unit_bytes=nbytes)
        return Plan(unit_rows=rows)

    def units(self, plan: Plan) -> int | None:
        """See `encoder.Encoder`."""
        self._use(plan)
        if self._cut is not None:
            return len(self._cut)
        total, rows = self.total, plan.unit_rows
        return None if total is None or rows is None else math.ceil(total / rows)

    def _use(self, plan: Plan) -> None:
        """Divides the source as a plan says."""
        parts = self._source.parts
        if plan.unit_bytes is not None and parts is not None:
            self._cut, self._unit_bytes = parts.cut(plan.unit_bytes), plan.unit_bytes
        if self._cut is not None:
            # The same rows in memory may have other chunks when a pack is resumed; then units begin
            # at other rows.
            self._stamp = f"{self._source.stamp} {self._cut.stamp()}"

    def _bytes_of_units(self) -> int | None:
        """Returns how many bytes of the source make a shard, by packing samples of it.

        None if the source cannot be divided.
        """
        parts = self._source.parts
        cut = None if parts is None else parts.cut(self._shard_bytes)
        if parts is None or cut is None:
            return None
        read = made = 0
        for unit in spread(len(cut), _TRIED_UNITS):
            most = cut.beginning_bytes(unit, _TRIED_BYTES)
            if not most:
                continue
            with suppress(FastioError):  # packing reports the first one in the order of the source
                pieces = parts.beginning(cut, unit, most)
                encoded = (self.encode(piece, lambda nbytes: None) for piece in pieces)
                made += sum(self._sizes(rows, 0)[-1] for rows in encoded if rows.count)
                read += most
        share = min(max(made / read, 1 / _MOST_FACTOR), _MOST_FACTOR) if read else 1.0
        return math.ceil(self._shard_bytes / share)

    def begin(self, plan: Plan, finished: Iterable[UnitEnd]) -> Iterator[Piece]:
        """See `encoder.Encoder`."""
        self._use(plan)
        ended = False
        for done in finished:
            if done.source != self._stamp:
                raise PackError(
                    f"cannot resume: {self._source.name} has changed since its first "
                    f"{self.position + done.samples} rows were packed (files added, removed, "
                    f"renamed or modified, or data in memory that has other chunks); {AGAIN}"
                )
            self.count(done)
            ended = done.last
        if self._cut is None:
            return iter(()) if ended else self._source.pieces(self.position)
        return chain.from_iterable(map(self._pieces_of_unit, range(self._unit, len(self._cut))))

    def parts_of_unit(self, plan: Plan, number: int) -> Iterator[Piece]:
        """See `encoder.Encoder`."""
        self._use(plan)
        self._unit = number
        if self._cut is not None:
            yield from self._pieces_of_unit(number)
            return
        rows = plan.unit_rows or 0
        self.position = self._begin = number * rows
        end = self.position + rows
        for piece in self._source.pieces(self.position):
            yield piece.until(end)
            if piece.first_row + piece.rows >= end:
                return

    def _pieces_of_unit(self, number: int) -> Iterator[Piece]:
        """Yields the rows of a unit, and last a piece that ends it."""
        assert self._source.parts is not None
        assert self._cut is not None
        yield from self._source.parts.unit(self._cut, number)
        yield Piece(0, [], ends_unit=True)

    def count(self, end: UnitEnd) -> None:
        """See `encoder.Encoder`."""
        self.position = self._begin = self.position + end.samples
        self._unit += 1
        self.left_out += end.left_out
        self._sums = _merged(self._sums, from_json(end.statistics or []))

    def memory_bytes(self, part: Piece) -> int:
        """See `encoder.Encoder`."""
        nbytes = 0 if self._layout is None else self._layout.nbytes * part.rows
        if self._layout is None or len(self._layout.offsets) < len(self.schema.fields):
            nbytes += sum(batch.nbytes for _, batch in part.parts)
        return nbytes

    def encode(self, part: Piece, hold: Callable[[int], None]) -> EncodedRows:
        """See `encoder.Encoder`. Raises SchemaError if a value cannot be stored."""
        if not part.parts:
            return EncodedRows(0, None, {}, (), (), part.left_out, part.ends_unit)
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
        return EncodedRows(begin, records, joined, same, sums, part.left_out, part.ends_unit)

    def encoded_bytes(self, encoded: EncodedRows) -> int:
        """See `encoder.Encoder`."""
        fixed = 0 if encoded.records is None else 2 * encoded.records.nbytes
        return int(fixed + sum(rows.values.nbytes for rows in encoded.ragged.values()))

    def fill(self, encoded: EncodedRows) -> Iterator[Filled]:
        """See `encoder.Encoder`."""
        begin = 0
        self._left_out += encoded.left_out
        most = self._most_bytes()
        while begin < encoded.count:
            end, nbytes = self._end_of_shard(encoded, begin, most)
            self._hold(encoded, begin, end)
            self._held_bytes += nbytes
            # `_clear` comes after the shard was written, because the columns of the shard share the
            # memory of the held rows.
            if self._held_bytes >= most:
                yield self._filled(ends=self._cut is None)
                self._clear()
            begin = end
        if encoded.ends_unit:
            yield self._filled(ends=True)
            self._clear()

    def _most_bytes(self) -> int:
        """Returns the size at which a shard of this unit ends.

        A unit of about the size of a shard becomes a single one, unless it is twice as large.
        """
        if self._cut is None or self._cut.nbytes(self._unit) > LARGEST_UNIT * self._unit_bytes:
            return self._shard_bytes
        return LARGEST_UNIT * self._shard_bytes

    def rest(self) -> Filled | None:
        """See `encoder.Encoder`."""
        return self._filled(ends=True, last=True) if self._held or self._left_out else None

    def about(self, shards: ShardTable) -> About:
        """See `encoder.Encoder`."""
        source = self._source
        if not shards:
            but = f" but {self.left_out} empty ones" if self.left_out else ""
            raise PackError(f"there is nothing to pack: {source.name} has no {source.counted}{but}")
        texts = frozenset(
            name for name, kind in self.schema.fields.items() if not hasattr(kind, "dtype")
        )
        statistics = described(source.columns, self._sums, texts, self.schema.vocabularies)
        packing = {"shard_bytes": self._shard_bytes, "source": source.name, "skipped": 0}
        return About({**packing, **source.packing(self.left_out)}, None, statistics or None)

    def _end_of_shard(self, rows: EncodedRows, begin: int, most: int) -> tuple[int, int]:
        """Returns where a shard of `most` bytes ends in these rows, and the bytes added to it."""
        ends = self._sizes(rows, begin)
        place = int(np.searchsorted(ends, most - self._held_bytes))
        last = min(place, len(ends) - 1)
        return begin + last + 1, int(ends[last])

    def _sizes(self, rows: EncodedRows, begin: int) -> NDArray[np.int64]:
        """Returns the bytes of rows [begin, end) for each end: int64 (count - begin,)."""
        fixed = 0 if rows.records is None else rows.records.dtype.itemsize
        count = rows.count - begin
        ends: Any = fixed * np.arange(1, count + 1, dtype=np.int64)
        for name, ragged in rows.ragged.items():
            item, field = ragged.values.itemsize, self.schema.fields[name]
            extra = row_bytes(name, field) + (8 if isinstance(field, Array) else 0)  # its only axis
            ends += (ragged.offsets[begin + 1 :] - ragged.offsets[begin]) * item
            ends += extra * np.arange(1, count + 1, dtype=np.int64)
        sizes: NDArray[np.int64] = ends
        return sizes

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

    def _filled(self, ends: bool, last: bool = False) -> Filled:
        """Returns the rows held as a shard. Its columns are valid until `_clear`.

        Args:
            ends: Whether its unit ends with it; then there may be no rows.
            last: Whether the source ends with it.
        """
        arrays = self._arrays() if self._held else []
        if not ends:
            return Filled(arrays, None)
        end = UnitEnd(
            self.position - self._begin,
            self._stamp,
            last,
            statistics=to_json(self._parts),
            left_out=self._left_out,
        )
        self._sums = _merged(self._sums, self._parts)
        self.left_out += self._left_out
        self._begin, self._parts, self._left_out = self.position, [], 0
        self._unit += 1
        return Filled(arrays, end)

    def _arrays(self) -> list[pa.Array]:
        """Returns the columns of the rows held."""
        arrays = []
        records = None if self._layout is None else self._records.all(self._layout.dtype)
        if records is not None and self.schema.records:
            arrays.append(record_array(records))
        for name, field in self.schema.fields.items():
            if is_fixed_width(field):
                if records is not None and not self.schema.records:
                    arrays.append(fixed_array(name, field, records[name]))
                continue
            rows = Ragged.joined([part[name] for part in self._held])
            arrays.append(variable_array(name, field, rows))
            if isinstance(field, Array):  # whose shape is its length
                bounds = number_array(np.arange(len(rows) + 1, dtype=np.int32))
                lengths, kind = np.diff(rows.offsets), field_columns(name, field)[1][1]
                arrays.append(pa.ListArray.from_arrays(bounds, number_array(lengths), type=kind))
        return arrays

    def _clear(self) -> None:
        self._held, self._held_bytes = [], 0
        self._records.clear()


def _merged(first: list[Moments], second: list[Moments]) -> list[Moments]:
    """Returns the statistics of two parts together; one may be that of nothing."""
    if not first or not second:
        return first or second
    return [a.merged(b) for a, b in zip(first, second, strict=True)]


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
