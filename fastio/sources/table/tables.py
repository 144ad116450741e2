"""Several tables with the same columns as one sequence of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from fastio.errors import SchemaError
from fastio.runtime.threads import DaemonPool
from fastio.schema import PICTURES, Field, Schema
from fastio.sources.table.columns import Conversion
from fastio.sources.table.cuts import Cut, cut
from fastio.sources.table.features import class_names, features_of, with_classes
from fastio.sources.table.filters import unwrapped
from fastio.sources.table.leaves import field_name, widest
from fastio.sources.table.options import MASK, TableOptions
from fastio.sources.table.reading import Columns, Origin, Place, Table
from fastio.sources.table.values import leaf_array

# What is read from a file at a time: enough that reading is fast, and not much memory.
_READ_ROWS = 65536
_READ_AT_ONCE = 8  # files, for their dictionaries


@dataclass(frozen=True)
class Piece:
    """Consecutive rows from one or more tables, with their origins.

    Attributes:
        first_row: The number of the first row in all tables together, or in the unit.
        parts: The rows; there may be none.
        left_out: The number of rows before or among these that are not packed.
        ends_unit: Whether a unit ends with these rows.
    """

    first_row: int
    parts: Sequence[tuple[Origin, pa.RecordBatch]]
    left_out: int = 0
    ends_unit: bool = False

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(int(batch.num_rows) for _, batch in self.parts)

    def until(self, end: int) -> Piece:
        """Returns the rows before row number `end`, which is after the first row."""
        parts: list[tuple[Origin, pa.RecordBatch]] = []
        left = end - self.first_row
        for origin, batch in self.parts:
            if left > 0:
                parts.append((origin, batch.slice(0, left)))
                left -= batch.num_rows
        return Piece(self.first_row, parts)


class Tables:
    """Tables with the same columns, one after another.

    Columns may be in a different order, and numbers may be narrower than in another file (int32 and
    int64, float32 and float64): all are converted to the widest type.

    Args:
        tables: The tables; at least one.
        options: Which columns are read, as which fields.
        find_words: Whether to read all dictionaries of strings. If False, only the names and types
            of the fields are right.
        embedded: The columns that hold files, with their fields; see `embedded_files`.

    Attributes:
        name: The name of the first table.
        tables: As given.
        conversion: The conversion of columns to fields.
        types: The types of the columns that are read, which can hold the values of all tables.
        schema: The schema of the fields.
        total: The number of rows of all tables; None if only reading them tells.

    Raises:
        SchemaError: If a wanted column is missing in a table, differs in type, or cannot be stored.
        ShardCorrupt: If a file is damaged.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        options: TableOptions,
        find_words: bool = True,
        embedded: Mapping[str, Field] | None = None,
    ) -> None:
        self.tables = list(tables)
        self.name = self.tables[0].name
        wanted = _agreed(self.tables[:1], None, options)
        # What is wanted is decided by the first; then all have to have it.
        files = embedded or {}
        pictures = {n: kind for n, kind in files.items() if isinstance(kind, PICTURES)}
        images = {field_name([n]): kind for n, kind in pictures.items()}
        first = Conversion(wanted, options, self.name, images, files)
        needed = {*first.reads, *(leaf.path[0] for leaf in first.pictures.values())}
        reads = [name for name in wanted.names if name in needed]
        if options.columns is None:
            _check_no_more(self.tables)
        agreed = _agreed(self.tables, reads, options)
        self.types: Mapping[str, pa.DataType] = dict(zip(agreed.names, agreed.types, strict=True))
        self.conversion = Conversion(agreed, options, self.name, images, files)
        if find_words:
            self._find_words(options)
        self.schema: Schema = with_classes(self.conversion.schema(), _class_names(self.tables))
        counts = [table.rows for table in self.tables]
        known = [count for count in counts if count is not None]
        self.total: int | None = sum(known) if len(known) == len(counts) else None
        self._cuts: dict[int, Cut | None] = {}

    def pieces(self, start: int, rows: int) -> Iterator[Piece]:
        """Yields all rows from number `start` on, cut at multiples of `rows`.

        Raises:
            ShardCorrupt: If a file is damaged.
            SchemaError: If a column's values have another type than earlier ones.
        """
        return _pieces(self._batches(start), start, rows)

    def cut(self, step: int) -> Cut | None:
        """Divides the rows into units of about `step` bytes; see `cuts.cut`."""
        if step not in self._cuts:
            self._cuts = {step: cut(self.tables, self.conversion.reads, step)}
        return self._cuts[step]

    def unit(self, found: Cut, number: int, rows: int) -> Iterator[Piece]:
        """Yields the rows of one unit, in pieces of `rows` rows; see `pieces` for its errors."""
        parts = [(table, place, None) for table, place in found.parts(number)]
        return _pieces(self._spans(parts), 0, rows)

    def beginning(self, found: Cut, number: int, rows: int, most: int) -> Iterator[Piece]:
        """Yields rows of about the first `most` bytes of the first part of a unit, as `unit`."""
        table, place = next(found.parts(number))
        return _pieces(self._spans([(table, place, most)]), 0, rows)

    @property
    def _wanted(self) -> Columns:
        """The columns to read, with their types."""
        return {name: self.types[name] for name in self.conversion.reads}

    def _spans(
        self, parts: Iterable[tuple[int, Place, int | None]]
    ) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        for number, place, most in parts:
            yield from self.tables[number].span(self._wanted, place, _READ_ROWS, most)

    def _batches(self, start: int) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        before = 0  # rows of the tables before
        for table in self.tables:
            if table.rows is not None and before + table.rows <= start:
                before += table.rows
                continue
            # A table of unknown length is read whole, to know where the next one begins.
            skip = max(start - before, 0) if table.rows is not None else 0
            at = before + skip
            for origin, batch in table.batches(self._wanted, skip, _READ_ROWS):
                cut = min(max(start - at, 0), batch.num_rows)
                at += batch.num_rows
                if cut < batch.num_rows:
                    yield origin.after(cut), batch.slice(cut)
            before = at if table.rows is None else before + table.rows

    def _find_words(self, options: TableOptions) -> None:
        """Reads the dictionaries of all tables. Words are numbered in order of first occurrence."""
        conversion = self.conversion
        if conversion.dictionaries:
            with DaemonPool(_READ_AT_ONCE, "fastio-table-words") as pool:
                for found in pool.map(self._dictionaries, self.tables):
                    for name, dictionary in found:
                        conversion.words[name].add(dictionary)
        # A value that replaces nulls is a word, too. It is added last, so that the numbers of the
        # other words stay as they are.
        for name, leaf in conversion.dictionaries.items():
            for spelling in (leaf.name, leaf.spoken):
                value = options.nulls.get(spelling, MASK)
                if value != MASK:
                    conversion.words[name].add_word(str(value))
            conversion.words[name].seal()

    def _dictionaries(self, table: Table) -> list[tuple[str, pa.Array]]:
        """Returns the dictionaries of a table's columns, with the fields' names."""
        file, constants = unwrapped(table)
        given = {} if constants is None else constants.words
        leaves = self.conversion.dictionaries
        found = [(n, given[leaf.path[0]]) for n, leaf in leaves.items() if leaf.path[0] in given]
        read = {name: leaf for name, leaf in leaves.items() if leaf.path[0] not in given}
        if not read:
            return found
        last: dict[str, pa.Array] = {}
        columns = {name: self.types[name] for name in sorted(n.path[0] for n in read.values())}
        for _, batch in file.batches(columns, 0, _READ_ROWS):
            for name, leaf in read.items():
                # Most batches of a file have the dictionary of the one before.
                dictionary = leaf_array(batch, leaf).dictionary
                if name not in last or not dictionary.equals(last[name]):
                    found.append((name, dictionary))
                    last[name] = dictionary
        return found


def _pieces(
    batches: Iterable[tuple[Origin, pa.RecordBatch]], first: int, rows: int
) -> Iterator[Piece]:
    """Yields batches, of which the first row has a number, cut at multiples of `rows`."""
    parts: list[tuple[Origin, pa.RecordBatch]] = []
    count = 0
    for origin, batch in batches:
        done = 0
        while done < batch.num_rows:
            room = rows - (first + count) % rows
            part = batch.slice(done, min(room, batch.num_rows - done))
            parts.append((origin.after(done), part))
            done += part.num_rows
            count += part.num_rows
            if part.num_rows == room:
                yield Piece(first, parts)
                parts, first, count = [], first + count, 0
    if parts:
        yield Piece(first, parts)


def _class_names(tables: Sequence[Table]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Returns the class names on which the metadata of all tables agree, by column path."""
    inner = [unwrapped(table)[0] for table in tables]
    found = [
        class_names(features_of(table.schema)) if table.classes is None else table.classes
        for table in inner
    ]
    return {
        path: names
        for path, names in found[0].items()
        if all(each.get(path) == names for each in found)
    }


def _agreed(
    tables: Sequence[Table], columns: Sequence[str] | None, options: TableOptions
) -> pa.Schema:
    """Returns a schema whose types can hold the values of all tables."""
    first = tables[0]
    found: dict[str, pa.DataType] = {}
    for name in columns or first.schema.names:
        agreed, from_table = first.schema.field(name).type, first
        for table in tables[1:]:
            if name not in table.schema.names:
                raise SchemaError(
                    f"{table.name} has no column {name!r}, which {first.name} has; it has "
                    f"{', '.join(table.schema.names)}"
                )
            kind = table.schema.field(name).type
            both = widest(agreed, kind) or _as_text(table, agreed, kind)
            if both is None:
                raise SchemaError(
                    f"column {name!r} is {kind} in {table.name}, and {agreed} in "
                    f"{from_table.name}: all files must have the same type"
                )
            if both != agreed:
                agreed, from_table = both, table
        found[name] = _told(first, agreed, options.dtypes.get(name))
    return pa.schema(list(found.items()))


def _as_text(table: Table, first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Returns the type for a text column with other numbers in one file than in another.

    Integers of 2**63 and more are uint64; with floats, all are float64.
    """
    if not table.is_text:
        return None
    if pa.types.is_integer(first) and pa.types.is_integer(second):
        return pa.uint64()
    numbers = all(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (first, second)
    )
    return pa.float64() if numbers else None


def _told(table: Table, found: pa.DataType, dtype: str | None) -> pa.DataType:
    """Returns the type to read a text column as, given the dtype that it is converted to."""
    if not table.is_text or dtype is None:
        return found
    if dtype.startswith("float") and (pa.types.is_integer(found) or pa.types.is_null(found)):
        return pa.float64()
    if dtype == "uint64" and (pa.types.is_integer(found) or pa.types.is_null(found)):
        return pa.uint64()
    if pa.types.is_null(found):
        return pa.bool_() if dtype == "bool" else pa.int64()
    return found


def _check_no_more(tables: Sequence[Table]) -> None:
    """Checks that no table has more columns than the first, if all columns are wanted."""
    first = tables[0]
    for table in tables[1:]:
        more = [name for name in table.schema.names if name not in first.schema.names]
        if more:
            raise SchemaError(
                f"{table.name} has the column {more[0]!r}, which {first.name} does not have; "
                "choose the columns to read (columns=..., --columns)"
            )
