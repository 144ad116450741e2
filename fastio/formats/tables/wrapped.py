"""Tables with the columns that their folders are, and without the rows that are not wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from fastio.formats.tables.binary_files import ParquetTable
from fastio.formats.tables.filters import Filter
from fastio.formats.tables.partitions import Constants
from fastio.formats.tables.reading import Batches, Table, reading


class PartitionedTable:
    """A table's columns, and those that its folders are; see `Table`.

    Attributes:
        inner: the file.
        constants: of its folders.
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
    """The rows of a table that pass a filter, whose number only reading tells; see `Table`.

    Args:
        inner: the table.
        wanted: which rows.

    Attributes:
        inner: the table.

    Raises:
        SchemaError: it has not the columns that the filter is about.
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
        """See `Table`; `start` counts rows that pass."""
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
    """The file below, and what its folders are."""
    if isinstance(table, FilteredTable):
        return unwrapped(table.inner)
    return (table.inner, table.constants) if isinstance(table, PartitionedTable) else (table, None)
