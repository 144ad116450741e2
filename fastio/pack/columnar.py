"""The packer for tables: pieces of many rows in, shards out, without Python for a row.

A shard's fixed-width fields come to it as records that are filled where they will lie; the fields
of variable width as bytes and offsets. The row that makes a shard's data reach its size is its
last: found from the offsets, it depends on rows alone, not on files or row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import PackError
from fastio.pack.cells import record_array
from fastio.pack.destination import Destination
from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.shards import Filled, Shards
from fastio.pack.statistics import Moments, described, from_json, moments, to_json
from fastio.packed import FORMAT_VERSION, ShardEntry
from fastio.schema import Array, Schema, Text, Tokens
from fastio.sources.table import Column, Converted, Piece, Ragged
from fastio.sources.table.place import Place

_BUDGET_BYTES = 256 << 20
_DEPTH_PER_WORKER = 4


class RowConversion(Protocol):
    """Turns a source's rows into fields; safe to use from several threads. See `Conversion`."""

    def columns(self) -> list[tuple[str, str]]:
        """Field and name of every source column, in the order of `Converted.columns`."""
        ...

    def convert(
        self, batch: pa.RecordBatch, place: Place, out: Mapping[str, NDArray[Any]] | None = None
    ) -> Converted:
        """Rows as fields.

        Raises:
            SchemaError: a value cannot be stored.
        """
        ...


class RowSource(Protocol):
    """Rows by the thousand: tables, or text.

    Attributes:
        name: what the manifest says the dataset was made of; no absolute path.
        schema: the fields.
        total: number of rows, or None when that is not known beforehand.
    """

    name: str
    schema: Schema
    total: int | None

    @property
    def conversion(self) -> RowConversion:
        """From rows to fields."""
        ...

    def pieces(self, start: int) -> Iterator[Piece]:
        """The rows from number `start` on, in pieces that are the same whatever `start` is."""
        ...

    def stamp(self) -> str:
        """What changes when one of its files does."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """What the dataset's bytes depend on beside the files, JSON values."""
        ...

    def packing(self) -> Mapping[str, Any]:
        """What the manifest says of how it was made, when all pieces have been taken."""
        ...


@dataclass(frozen=True)
class _Rows:
    """Converted rows.

    Attributes:
        count: how many.
        records: (count,) of the layout's dtype, None without fixed-width fields.
        ragged: the fields of variable width.
        columns: the source's columns.
        moments: of each of them, of all rows.
    """

    count: int
    records: NDArray[Any] | None
    ragged: dict[str, Ragged]
    columns: Sequence[Column]
    moments: Sequence[Moments]

    def nbytes(self) -> int:
        """What they take in memory, about."""
        fixed = 0 if self.records is None else 2 * self.records.nbytes
        return int(fixed + sum(rows.values.nbytes for rows in self.ragged.values()))


class TablePacker:
    """Writes the dataset of a table. Used by one thread.

    Args:
        destination: where to.
        source: the rows.
        shard_bytes: a shard is closed by the row that makes its data this large.
        workers: number of threads.
        resume: whether to go on with a half-written dataset that is there.
        overwrite: whether to replace a dataset that is there.

    Attributes:
        skipped: nothing: no row is left out.
        position: how many of the table's rows are used up.
        resumed: how many shards were there already.

    Raises:
        DatasetExists: the destination holds a dataset.
        PackError: it cannot be written, or not resumed with this source and options.
    """

    def __init__(
        self,
        destination: Destination,
        source: RowSource,
        shard_bytes: int,
        workers: int,
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.skipped: list[tuple[str, str]] = []
        self.position = 0
        self.resumed = 0
        self._source = source
        self._schema = source.schema
        self._shard_bytes = shard_bytes
        self._held: list[dict[str, Ragged]] = []
        self._held_rows = 0
        self._records = _Records(self._schema)
        self._held_bytes = 0
        self._parts: list[Moments] | None = None
        self._sums: list[Moments] | None = None
        self._stamp = source.stamp()
        self._shards = Shards(destination, self._schema, self._options(), resume, overwrite)
        converted = _Converter(source.conversion, self._schema)
        # Conversion lets go of the interpreter's lock for as long as arrays are copied.
        threads = workers if workers > 1 else 0
        self._pipeline: OrderedPipeline[Piece, _Rows] = OrderedPipeline(
            converted, _Rows.nbytes, threads, threads * _DEPTH_PER_WORKER, _BUDGET_BYTES
        )

    @property
    def entries(self) -> list[ShardEntry]:
        """The shards that are finished."""
        return self._shards.entries

    def resume(self) -> Iterator[Piece]:
        """Take over what the journal says is finished.

        Returns:
            The table's rows that are left.

        Raises:
            PackError: a finished shard is missing, or the table is not the one that was packed.
        """
        for shard in self._shards.take_over():
            if shard.source != self._stamp:
                raise PackError(
                    f"cannot resume: {self._source.name} has changed since its first "
                    f"{shard.position} rows were packed (files added, removed, renamed or "
                    "modified); start again with overwrite"
                )
            self.position = shard.position
            self.resumed += 1
            self._sum_up(from_json(shard.statistics or []))
        return self._source.pieces(self.position)

    def add(self, piece: Piece) -> None:
        """Take rows; they may be converted and written later.

        Raises:
            SchemaError: a value cannot be stored.
            PackError: the destination cannot be written.
        """
        for rows in self._pipeline.submit(piece, self._memory_bytes(piece)):
            self._store(rows)

    def finish(self) -> None:
        """Write what is left and the manifest: from here on it is a dataset.

        Raises:
            As `add`; PackError: there were no rows.
        """
        for rows in self._pipeline.drain():
            self._store(rows)
        if self._held:
            self._write_shard(last=True)
        if not self.entries:
            raise PackError(f"there is nothing to pack: {self._source.name} has no rows")
        texts = frozenset(
            name for name, kind in self._schema.fields.items() if not hasattr(kind, "dtype")
        )
        columns = self._source.conversion.columns()
        statistics = described(columns, self._sums or [], texts, self._schema.vocabularies)
        packing = {
            "shard_bytes": self._shard_bytes,
            "source": self._source.name,
            "skipped": 0,
            **self._source.packing(),
        }
        self._shards.finish(packing, None, statistics or None)

    def close(self) -> None:
        """End the threads and close the journal. What is half-written stays, to be resumed."""
        self._pipeline.close()
        self._shards.close()

    def _memory_bytes(self, piece: Piece) -> int:
        """What a piece takes before it is converted, about."""
        layout = self._schema.record_layout
        nbytes = 0 if layout is None else layout.nbytes * piece.rows
        if layout is None or len(layout.offsets) < len(self._schema.fields):
            nbytes += sum(batch.nbytes for _, batch in piece.parts)
        return nbytes

    def _store(self, rows: _Rows) -> None:
        begin = 0
        while begin < rows.count:
            end, nbytes = self._cut(rows, begin)
            self._hold(rows, begin, end)
            self._held_bytes += nbytes
            if self._held_bytes >= self._shard_bytes:
                self._write_shard(last=False)
            begin = end

    def _cut(self, rows: _Rows, begin: int) -> tuple[int, int]:
        """Where the shard that is being filled ends in these rows, and their bytes up to there."""
        fixed = 0 if rows.records is None else rows.records.dtype.itemsize
        count = rows.count - begin
        ends: Any = fixed * np.arange(1, count + 1, dtype=np.int64)
        for name, ragged in rows.ragged.items():
            item, extra = ragged.values.itemsize, _ragged_overhead(self._schema, name)
            ends += (ragged.offsets[begin + 1 :] - ragged.offsets[begin]) * item
            ends += extra * np.arange(1, count + 1, dtype=np.int64)
        place = int(np.searchsorted(ends, self._shard_bytes - self._held_bytes))
        last = min(place, count - 1)
        return begin + last + 1, int(ends[last])

    def _hold(self, rows: _Rows, begin: int, end: int) -> None:
        self.position += end - begin
        if end - begin == rows.count:
            parts = list(rows.moments)
        else:
            parts = [moments(column, begin, end) for column in rows.columns]
        if self._parts is None:
            self._parts = parts
        else:
            self._parts = [a.merged(b) for a, b in zip(self._parts, parts, strict=True)]
        if rows.records is not None:
            self._records.append(rows.records[begin:end])
        ragged = {name: part.slice(begin, end) for name, part in rows.ragged.items()}
        self._held.append(ragged)
        self._held_rows += end - begin

    def _write_shard(self, last: bool) -> None:
        parts = self._parts or []
        self._shards.add(
            Filled(
                self._arrays(),
                self._held_rows,
                self.position,
                self._stamp,
                last,
                statistics=to_json(parts),
            )
        )
        self._sum_up(parts)
        self._held, self._held_rows, self._held_bytes, self._parts = [], 0, 0, None
        self._records.clear()

    def _arrays(self) -> list[pa.Array]:
        """The columns of the shard that is held; they are valid until it is let go of."""
        arrays = []
        if self._schema.record_layout is not None:
            arrays.append(record_array(self._records.all()))
        for name in self._held[0]:
            rows = Ragged.joined([part[name] for part in self._held])
            arrays += _ragged_arrays(self._schema, name, rows)
        return arrays

    def _sum_up(self, parts: list[Moments]) -> None:
        if self._sums is None:
            self._sums = parts
        else:
            self._sums = [a.merged(b) for a, b in zip(self._sums, parts, strict=True)]

    def _options(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "shard_size": self._shard_bytes,
            "source": self._source.name,
            **self._source.identity(),
            "schema": self._schema.to_json(),
        }


class _Records:
    """The records of the shard that is being filled, in memory that all shards use in turn.

    Memory that was used before costs a third of new memory, whose pages come zeroed one by one.
    """

    def __init__(self, schema: Schema) -> None:
        layout = schema.record_layout
        self._memory = np.empty(0, np.uint8 if layout is None else layout.dtype)
        self._count = 0

    def append(self, records: NDArray[Any]) -> None:
        """Copy rows in."""
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
        """The rows, where they lie."""
        return self._memory[: self._count]

    def clear(self) -> None:
        """Begin anew; what `all` gave is overwritten."""
        self._count = 0

    @property
    def _nbytes(self) -> int:
        return self._count * self._memory.dtype.itemsize


class _Converter:
    """Converts pieces: the function that the threads run."""

    def __init__(self, conversion: RowConversion, schema: Schema) -> None:
        self._conversion = conversion
        self._layout = schema.record_layout

    def __call__(self, piece: Piece, hold: Callable[[int], None]) -> _Rows:
        """A piece's rows as fields.

        Raises:
            SchemaError: as `RowConversion.convert`.
        """
        records = None
        if self._layout is not None:
            # The bytes between fields are zero.
            records = np.zeros(piece.rows, self._layout.dtype)
        ragged: list[dict[str, Ragged]] = []
        columns: list[Sequence[Column]] = []
        begin = 0
        for place, batch in piece.parts:
            end = begin + batch.num_rows
            part = None if records is None else records[begin:end]
            out = {} if part is None else {name: part[name] for name in part.dtype.names or ()}
            converted = self._conversion.convert(batch, place, out)
            fields = converted.fields.items()
            ragged.append({name: rows for name, rows in fields if isinstance(rows, Ragged)})
            columns.append(converted.columns)
            begin = end
        joined = {name: Ragged.joined([part[name] for part in ragged]) for name in ragged[0]}
        counts = [batch.num_rows for _, batch in piece.parts]
        same = [_joined(parts, counts) for parts in zip(*columns, strict=True)]
        # Here, by one of several threads; the packer does it again where a shard ends in between.
        sums = [moments(column, 0, begin) for column in same]
        return _Rows(begin, records, joined, same, sums)


def _joined(parts: Sequence[Column], counts: Sequence[int]) -> Column:
    """One column of several parts.

    Args:
        parts: the column's.
        counts: rows of each.
    """
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
    """Masks one after the other; None stands for one of the shape without anything in it."""
    if all(mask is None for mask in masks):
        return None
    return np.concatenate(
        [
            np.zeros(shape, np.bool_) if mask is None else mask
            for mask, shape in zip(masks, shapes, strict=True)
        ]
    )


def _ragged_arrays(schema: Schema, name: str, rows: Ragged) -> list[pa.Array]:
    """The columns of a field of variable width."""
    kind = schema.fields[name]
    if isinstance(kind, Tokens):
        type_ = schema.arrow_schema().field(name).type
        flat = pa.array(np.ascontiguousarray(rows.values))
        return [pa.LargeListArray.from_arrays(pa.array(rows.offsets), flat, type=type_)]
    item = rows.values.itemsize
    offsets = np.ascontiguousarray(rows.offsets * item)
    data = np.ascontiguousarray(rows.values).view(np.uint8)
    arrow = pa.large_utf8() if isinstance(kind, Text) else pa.large_binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    main = pa.Array.from_buffers(arrow, len(rows), buffers)
    if not isinstance(kind, Array):
        return [main]
    lengths = pa.array(np.diff(rows.offsets))
    bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32))
    type_ = schema.arrow_schema().field(f"{name}.shape").type
    return [main, pa.ListArray.from_arrays(bounds, lengths, type=type_)]


def _ragged_overhead(schema: Schema, name: str) -> int:
    """Bytes of a row of a field of variable width beside its data: offsets, and the shape."""
    return 8 + (4 + 8 if isinstance(schema.fields[name], Array) else 0)
