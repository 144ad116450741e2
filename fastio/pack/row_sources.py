"""Tables, and text as tokens, as sources whose rows are read by the thousand.

`tables.TableEncoder` makes shards of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.pack.joined import JoinedRows
from fastio.pack.ray_data import RayTable, is_ray_dataset
from fastio.pack.statistics import Moments
from fastio.schema import Schema
from fastio.sources.table.arrow import MemoryTable
from fastio.sources.table.columns import Converted
from fastio.sources.table.cuts import Cut
from fastio.sources.table.filters import Filter
from fastio.sources.table.opening import Opened, joined
from fastio.sources.table.options import TableOptions
from fastio.sources.table.reading import Origin, Table
from fastio.sources.table.tables import Piece

# Rows that are converted at a time. Statistics of shards are summed over as many rows at a time, so
# another number changes the bytes of a dataset.
PIECE_ROWS = 32768
_PIECE_BYTES = 8 << 20  # the most bytes of rows of fixed width that are converted at a time
_WIDEST_RECORD = 4096  # bytes; reading one field of a record reads its other fields too

Convert = Callable[[pa.RecordBatch, Origin, Mapping[str, NDArray[Any]] | None], Converted]


@dataclass(frozen=True)
class Parts:
    """The parts of tables, for `RowSource`; see `Tables` for the methods of the same names.

    Attributes:
        cut: Divides the source into units of about a number of bytes; None if that is impossible.
        unit: Yields the rows of a unit, in pieces.
        beginning: Yields the first rows of a unit, up to about a number of bytes.
    """

    cut: Callable[[int], Cut | None]
    unit: Callable[[Cut, int], Iterator[Piece]]
    beginning: Callable[[Cut, int, int], Iterator[Piece]]


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
        parts: How the source is divided into parts that are read by themselves, or None.
        stamp: A hash that changes if a file does; a constant for data in memory.
        identity: What the dataset's bytes depend on beside the files, as JSON values.
        packing: Returns what the manifest says of how it was made, given the number of documents
            that were left out.
        counted: What the rows are called: "rows" or "documents".
        skipped: (name, reason) of the files that were left out.
        can_skip: Whether damaged files may be left out.
        of_samples: Whether they are the rows of a dataset of samples. Options of images and bad
            samples are allowed for it.
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
    packing: Callable[[int], Mapping[str, Any]]
    parts: Parts | None = None
    counted: str = "rows"
    skipped: Sequence[tuple[str, str]] = ()
    can_skip: bool = False
    of_samples: bool = False
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
        lambda left_out: {**identity, "skipped": len(opened.skipped)},
        Parts(
            tables.cut,
            lambda cut, number: tables.unit(cut, number, PIECE_ROWS),
            lambda cut, number, most: tables.beginning(cut, number, PIECE_ROWS, most),
        ),
        skipped=opened.skipped,
        can_skip=bool(opened.files),
    )


def column_source(rows: JoinedRows, name: str) -> RowSource | None:
    """Returns rows as a source; None if a field does not have a fixed width.

    Narrow rows are stored as records, so that each row is in one place.

    Args:
        rows: The rows, whose `gather_all` may be called by several threads.
        name: As for `RowSource`.
    """
    fields, layout = list(rows.schema.fields), rows.schema.layout_of_fixed()
    if layout is None or not layout.nbytes or len(layout.offsets) < len(fields):
        return None
    records = len(fields) > 1 and layout.nbytes <= _WIDEST_RECORD
    step = min(PIECE_ROWS, max(1, _PIECE_BYTES // layout.nbytes))
    total = len(rows)

    def pieces(start: int) -> Iterator[Piece]:
        for begin in range(start, total, step):
            yield Piece(begin, [(Origin(name, begin), _RowRange(begin, total, step))])

    def convert(
        some: _RowRange, origin: Origin, out: Mapping[str, NDArray[Any]] | None
    ) -> Converted:
        assert out is not None  # there are fields of fixed width
        places = np.arange(some.begin, some.begin + some.num_rows)
        for field, values in rows.gather_all(fields, places).items():
            out[field][...] = values
        return Converted(out, ())

    return RowSource(
        name,
        replace(rows.schema, records=records),
        total,
        (),
        convert,
        pieces,
        rows.fingerprint,
        {},
        lambda left_out: {},
        of_samples=True,
    )


class _RowRange:
    """Consecutive rows of a dataset, in place of a record batch."""

    def __init__(self, begin: int, end: int, most: int) -> None:
        self.begin = begin
        self.num_rows = min(most, end - begin)

    def slice(self, offset: int, length: int) -> _RowRange:
        """Returns some of the rows."""
        begin = self.begin + offset
        return _RowRange(begin, self.begin + self.num_rows, length)


def open_memory(src: Any, filters: Any = None) -> Opened | None:
    """Returns Arrow data in memory as a table, or None for other objects; see `memory_table`.

    Raises:
        SchemaError: As for `Filter.of`, or a stream has dictionary-encoded strings.
    """
    name = type(src).__name__
    arrow = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
    if not isinstance(src, arrow) and hasattr(src, "__arrow_c_stream__"):
        # A table, unlike a stream, can be divided into units.
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
