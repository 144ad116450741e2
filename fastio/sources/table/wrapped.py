"""Wrappers of tables that add partition columns and remove rows that a filter rejects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from fastio.sources.table.binary_files import ParquetTable
from fastio.sources.table.filters import Filter
from fastio.sources.table.partitions import Constants
from fastio.sources.table.reading import Batches, Table, reading


class PartitionedTable:
    """A table with the partition columns of its path added; see `Table`.

    Attributes:
        inner: The file's table.
        constants: The partition columns.
    """

    def __init__(self, inner: Table, constants: Constants) -> None:
        self.inner = inner
        self.constants = constants
        self.name = inner.name
        self.rows = inner.rows
        self.is_text = inner.is_text
        self.schema: pa.Schema = constants.schema(inner.schema)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        reads = self.constants.to_read(columns, self.inner.schema)
        known = {**types, **{n: self.inner.schema.field(n).type for n in reads if n not in types}}
        for place, batch in self.inner.batches(reads, known, start, rows):
            yield place, self.constants.add(batch, columns)


class FilteredTable:
    """The rows of a table that match a filter; see `Table`. Their number is unknown before reading.

    Args:
        inner: The table.
        wanted: The filter.

    Attributes:
        inner: The table.

    Raises:
        SchemaError: If the table lacks columns that the filter uses.
    """

    def __init__(self, inner: Table, wanted: Filter) -> None:
        wanted.check(inner.schema, inner.name)
        self.inner = inner
        self._wanted = wanted
        self.name = inner.name
        self.rows: int | None = None
        self.is_text = inner.is_text
        self.schema: pa.Schema = inner.schema
        file, constants = unwrapped(inner)
        if isinstance(file, ParquetTable):
            every = range(file.metadata.num_row_groups)
            possible = wanted.possible(file.metadata, self.schema, constants)
            file.skip = frozenset(every) - possible

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`. `start` counts matching rows."""
        about = [name for name in self._wanted.columns if name in self.schema.names]
        reads = [*dict.fromkeys([*columns, *about])]
        known = {**types, **{n: self.schema.field(n).type for n in reads if n not in types}}
        before = 0
        for place, batch in self.inner.batches(reads, known, 0, rows):
            with reading(self.name):
                kept, numbers = self._wanted.numbered(batch)
            cut = min(max(start - before, 0), kept.num_rows)
            before += kept.num_rows
            if cut < kept.num_rows:
                found = replace(place, numbers=numbers + place.first_row)
                yield found.after(cut), kept.slice(cut).select(list(columns))


def unwrapped(table: Table) -> tuple[Table, Constants | None]:
    """Returns the file's own table and its partition columns, without the wrappers."""
    if isinstance(table, FilteredTable):
        return unwrapped(table.inner)
    return (table.inner, table.constants) if isinstance(table, PartitionedTable) else (table, None)
