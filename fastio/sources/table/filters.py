"""Which rows of tables are read: partition columns, and filters in pyarrow's form.

Partition columns are the values in folder names such as year=2024/month=03, as Hive writes them. If
a file has a column of the same name, the path's value is used, as in pyarrow.dataset.

pyarrow.dataset is imported where it is used: it imports pandas, and `import fastio` would take
nearly twice as long.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pa_parquet
from pyarrow.fs import LocalFileSystem

from fastio.errors import SchemaError
from fastio.sources.table.exact_filters import exact_filters
from fastio.sources.table.objects import TableFile, Values
from fastio.sources.table.parquet import ParquetTable
from fastio.sources.table.reading import (
    AtHand,
    Batches,
    Columns,
    Grouped,
    Origin,
    Place,
    Spans,
    Table,
    reading,
)

_INT32 = range(-(2**31), 2**31)
_INTEGER = re.compile(r"-?[0-9]+")
# Raised by pyarrow for a filter of the wrong form, or one that does not fit the columns.
_MISFITS = (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Constants:
    """The partition columns of one file.

    Attributes:
        fields: The types of the columns: int32, or dictionary-encoded strings.
        values: The value of each column; None for null.
        words: For columns of strings, the sorted values of all files.
    """

    fields: Mapping[str, pa.DataType]
    values: Mapping[str, int | str | None]
    words: Mapping[str, pa.Array]

    def schema(self, of_file: pa.Schema) -> pa.Schema:
        """Adds the partition columns to a file's schema; they replace columns of one name."""
        names = [*dict.fromkeys([*of_file.names, *self.fields])]
        own = {name: of_file.field(name) for name in of_file.names if name not in self.fields}
        return pa.schema([own.get(n) or pa.field(n, self.fields[n]) for n in names])

    def to_read(self, columns: Iterable[str], of_file: pa.Schema) -> list[str]:
        """Returns the columns to read from the file; at least one, because it counts the rows."""
        return [name for name in columns if name not in self.fields] or of_file.names[:1]

    def add(self, batch: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
        """Returns the wanted columns: those of the batch, and the partition columns."""
        arrays = [
            self._array(name, batch.num_rows) if name in self.fields else batch.column(name)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def expression(self) -> Any:
        """Returns an expression that is true for all rows of the file."""
        conditions = [
            pc.field(name).is_null() if value is None else pc.field(name) == value
            for name, value in self.values.items()
        ]
        return reduce(lambda one, other: one & other, conditions)

    def _array(self, name: str, rows: int) -> pa.Array:
        value, words = self.values[name], self.words.get(name)
        if words is None:
            kind = self.fields[name]
            return pa.repeat(pa.scalar(value, kind), rows)
        if value is None:
            return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), words)
        codes = np.full(rows, words.index(value).as_py(), np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes), words)


def constants_of(files: Sequence[TableFile]) -> list[Constants | None]:
    """Returns the partition columns of each file.

    A column is int32 if all values of all files parse as such, else strings. It is null for a file
    whose path does not have it.
    """
    names = [*dict.fromkeys(name for file in files for name in file.values)]
    if not names:
        return [None] * len(files)
    given = {
        name: {text for file in files if (text := file.values.get(name)) is not None}
        for name in names
    }
    numeric = {name for name, found in given.items() if found and all(map(_is_int32, found))}
    encoded = pa.dictionary(pa.int32(), pa.string())
    fields = {name: pa.int32() if name in numeric else encoded for name in names}
    words = {n: pa.array(sorted(given[n]), pa.string()) for n in names if n not in numeric}

    def typed(values: Values) -> dict[str, int | str | None]:
        found: dict[str, int | str | None] = {}
        for name in names:
            text = values.get(name)
            found[name] = int(text) if text is not None and name in numeric else text
        return found

    return [Constants(fields, typed(file.values), words) for file in files]


def _is_int32(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT32


_NUMBER = "\0row"  # no file has a column of this name


@dataclass(frozen=True)
class Filter:
    """A condition on rows, as an expression of pyarrow.

    `columns` are the names of the columns that it uses; at least one, which counts the rows.
    """

    condition: Any
    columns: tuple[str, ...]

    @staticmethod
    def of(filters: Any, schema: pa.Schema, where: str) -> Filter | None:
        """Creates a filter from a user's argument, for tables of a schema.

        Args:
            filters: An expression of pyarrow.dataset; or a list of tuples (column, operator,
                value), all of which must hold; or a list of such lists, one of which must hold; or
                None.
            schema, where: The schema and path of the table.

        Raises:
            SchemaError: If it has another form, or does not fit the table.
        """
        if filters is None:
            return None
        try:
            condition = pa_parquet.filters_to_expression(exact_filters(filters, schema))
        except _MISFITS as error:
            raise _unfitting(filters, where, error) from error
        whole = Filter(condition, tuple(schema.names))
        whole.check(schema, where, filters)
        # An expression does not tell its columns: those without which it does not work.
        text = str(condition)
        likely = [name for name in schema.names if name in text]
        needed = [name for name in likely if whole.needs(name, schema)]
        return Filter(condition, tuple(needed or schema.names[:1]))

    def needs(self, name: str, schema: pa.Schema) -> bool:
        """Returns whether the condition uses a column of a table that it fits."""
        try:
            schema.remove(schema.get_field_index(name)).empty_table().filter(self.condition)
        except pa.ArrowException:
            return True
        return False

    def check(self, schema: pa.Schema, where: str, filters: Any = None) -> None:
        """Raises SchemaError unless the filter fits a table: its columns and their types.

        `filters` is the filter as the user gave it, for messages.
        """
        try:
            schema.empty_table().filter(self.condition)
        except _MISFITS as error:
            raise _unfitting(str(self) if filters is None else filters, where, error) from error

    def __str__(self) -> str:
        return str(self.condition)

    @contextmanager
    def _comparing(self) -> Iterator[None]:
        """Raises SchemaError if values cannot be compared: the file is not damaged then."""
        try:
            yield
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"the filter {self} cannot be compared with the values of its columns: {error}. "
                "Write the filter as [(column, operator, number)], which compares exactly; or, in "
                "an expression, use a number of the column's type, such as "
                "pyarrow.scalar(1, pyarrow.uint64())"
            ) from error

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch that match."""
        with self._comparing():
            matching = pa.Table.from_batches([batch]).filter(self.condition)
        kept = matching.combine_chunks().to_batches()
        return kept[0] if kept else batch.slice(0, 0)

    def matching(self, origin: Origin, batch: pa.RecordBatch) -> tuple[Origin, pa.RecordBatch]:
        """Returns the rows of a batch that match, and their origin, given that of the batch."""
        # pyarrow's filter does not return which rows it keeps, so a column of row numbers is
        # filtered too.
        numbers = pa.array(np.arange(batch.num_rows, dtype=np.int64))
        arrays = [*batch.columns, numbers]
        named = pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, _NUMBER])
        kept = self.of_batch(named)
        places = kept.column(_NUMBER).to_numpy()
        found = replace(origin, numbers=origin.first_row + places)
        return found, kept.select(batch.schema.names)

    def possible(self, table: Table) -> set[int]:
        """Returns the row groups of a Parquet file that may have matching rows, by statistics.

        The file is `table`, or in it beside the partition columns.
        """
        import pyarrow.dataset as pa_dataset

        file, constants = unwrapped(table)
        assert isinstance(file, ParquetTable)
        # pyarrow.dataset uses the statistics of its own fragments only. This fragment has the
        # footer of the file, but no data.
        footer = pa.BufferOutputStream()
        file.metadata.write_metadata_file(footer)
        known = None if constants is None else constants.expression()
        fragment = pa_dataset.ParquetFileFormat().make_fragment(
            pa.BufferReader(footer.getvalue()), partition_expression=known
        )
        with self._comparing():
            found = fragment.subset(filter=self.condition, schema=_plain(table.schema))
        return {group.id for group in found.row_groups}

    def among(self, files: Sequence[Constants | None], schema: pa.Schema) -> list[int]:
        """Returns the numbers of the files that may have matching rows, by partition columns."""
        if None in files:
            return list(range(len(files)))
        import pyarrow.dataset as pa_dataset

        # The numbers of the files take the place of their paths, which are never opened.
        dataset = pa_dataset.FileSystemDataset.from_paths(
            [str(number) for number in range(len(files))],
            schema=_plain(schema),
            format=pa_dataset.ParquetFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=[constants.expression() for constants in files if constants is not None],
        )
        return sorted(int(each.path) for each in dataset.get_fragments(filter=self.condition))


def _plain(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with the values' types in place of dictionary-encoded ones.

    Before pyarrow 26, a file that is known to have nulls in a dictionary-encoded column is left out
    where the filter asks for nulls.
    """
    for number, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            schema = schema.set(number, field.with_type(field.type.value_type))
    return schema


def _unfitting(filters: Any, where: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"{where}: filters={filters!r} does not fit the table: {error}. It is a list of "
        "(column, operator, value), or an expression of pyarrow.dataset"
    )


class _Wrapped(Table):
    """A table that derives its rows from those of another table, `inner`."""

    inner: Table

    @abstractmethod
    def _reads(self, columns: Iterable[str]) -> list[str]:
        """Returns the columns of `inner` that are needed for columns of this table."""

    @abstractmethod
    def _made(self, batches: Batches, columns: Iterable[str]) -> Batches:
        """Yields columns of this table, given the batches of `inner`."""

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`."""
        return self._made(self.inner.batches(self._types(columns), start, rows), columns)

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`."""
        return self.inner.spans(self._reads(columns), step)

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """See `Table`."""
        return self._made(self.inner.span(self._types(columns), place, rows, most), columns)

    def _types(self, columns: Columns) -> dict[str, pa.DataType]:
        """Returns the columns to read from `inner`, with their types."""
        schema = self.inner.schema
        return {n: columns.get(n, schema.field(n).type) for n in self._reads(columns)}


class PartitionedTable(_Wrapped, Grouped):
    """A table with the partition columns of its path added. It has row groups if `inner` does."""

    def __init__(self, inner: Table, constants: Constants) -> None:
        self.inner = inner
        self.constants = constants
        self.name = inner.name
        self.rows = inner.rows
        self.is_text = inner.is_text
        self.has_groups = isinstance(inner, Grouped) and inner.has_groups
        self.schema = constants.schema(inner.schema)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Grouped`."""
        return self._grouped.groups([n for n in varying if n not in self.constants.fields])

    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """See `Grouped`."""
        found = self._grouped.read(number, self._reads(columns), rows, threads, at_hand)
        return (self.constants.add(batch, columns) for batch in found)

    def ahead(self, number: int, columns: Sequence[str], at_hand: AtHand) -> bool:
        """See `Grouped`."""
        return self._grouped.ahead(number, self._reads(columns), at_hand)

    @property
    def _grouped(self) -> Grouped:
        assert isinstance(self.inner, Grouped)
        return self.inner

    def _reads(self, columns: Iterable[str]) -> list[str]:
        return self.constants.to_read(columns, self.inner.schema)

    def _made(self, batches: Batches, columns: Iterable[str]) -> Batches:
        for origin, batch in batches:
            yield origin, self.constants.add(batch, columns)


class FilteredTable(_Wrapped):
    """The rows of a table that match a filter. Their number is unknown before reading.

    The sizes of its parts include the rows that do not match.

    Raises:
        SchemaError: If the table lacks columns that the filter uses.
    """

    def __init__(self, inner: Table, wanted: Filter) -> None:
        wanted.check(inner.schema, inner.name)
        self.inner = inner
        self._wanted = wanted
        self.name = inner.name
        self.is_text = inner.is_text
        self.schema = inner.schema
        file, _ = unwrapped(inner)
        if isinstance(file, ParquetTable):
            file.skip = frozenset(range(file.metadata.num_row_groups)) - wanted.possible(inner)

    def _reads(self, columns: Iterable[str]) -> list[str]:
        about = [name for name in self._wanted.columns if name in self.schema.names]
        return [*dict.fromkeys([*columns, *about])]

    def _made(self, batches: Batches, columns: Iterable[str]) -> Batches:
        for origin, batch in batches:
            with reading(self.name):
                found, kept = self._wanted.matching(origin, batch)
            if kept.num_rows:
                yield found, kept.select(list(columns))


def unwrapped(table: Table) -> tuple[Table, Constants | None]:
    """Returns the file's own table and its partition columns, without the wrappers."""
    if isinstance(table, FilteredTable):
        return unwrapped(table.inner)
    return (table.inner, table.constants) if isinstance(table, PartitionedTable) else (table, None)
