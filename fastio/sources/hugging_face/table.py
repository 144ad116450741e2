"""A dataset of the datasets package as a table, and the fields that its columns become."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.schema import Array, Field, Image, Scalar, Schema, Text
from fastio.sources.hugging_face.plain import plain_batch, plain_schema
from fastio.sources.hugging_face.sources import Opened as OpenedDataset
from fastio.sources.hugging_face.sources import open_hugging_face
from fastio.sources.named_files import NamedFiles
from fastio.sources.table.columns import Conversion
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.features import (
    Feature,
    Picture,
    Plain,
    Unknown,
    class_names,
    leaf_features,
    pictures,
    with_classes,
)
from fastio.sources.table.filters import Filter
from fastio.sources.table.leaves import Leaf, children, field_or_none, is_list, is_text, leaves
from fastio.sources.table.opening import Opened
from fastio.sources.table.options import VALID_SUFFIX, TableOptions
from fastio.sources.table.reading import Batches, Place
from fastio.sources.table.row_groups import Source


class HuggingFaceTable(Source):
    """A dataset as a table (see `Table`) with row groups, of columns that fields are made of.

    Thread-safe.

    Args:
        source: a directory of `save_to_disk`, or a `datasets.Dataset`.
        options: only columns that are wanted must have known features.
        roots: folders, beside its own, that its files may lie in.

    Attributes:
        stamp: changes when the data do.
        classes: names of classes, by the path of their column.
        named_files: the files that its paths may name.
        images: path and mode of every column of images, by the name of its field.

    Raises:
        SourceNotFound, ShardCorrupt: as `open_hugging_face`.
        SchemaError: a wanted column has a feature that is not known.
    """

    is_text = False
    lends = True

    def __init__(
        self,
        source: Any,
        options: TableOptions | None = None,
        roots: Iterable[str | os.PathLike[str]] | None = None,
    ) -> None:
        self._given = source, options, roots
        opened = open_hugging_face(source)
        self.named_files = NamedFiles(opened.folder, roots)
        self._opened: OpenedDataset = opened
        self.name = opened.name
        self.stamp = opened.stamp
        self.rows: int | None = len(opened.rows)
        self._features = _known(opened, options or TableOptions())
        whole = plain_schema(opened.rows.schema, self._features)
        self.schema = whole.remove_metadata()
        unknown = [n for n, f in self._features.items() if isinstance(f, Unknown)]
        for name in unknown:
            if name in self.schema.names:
                self.schema = self.schema.remove(self.schema.get_field_index(name))
        self.classes = class_names(self._features)
        self.images = {
            "_".join(path).replace(".", "_"): (path, picture)
            for path, picture in pictures(self._features).items()
        }

    def __reduce__(self) -> Any:
        return HuggingFaceTable, self._given

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        for run in self._runs:
            if run.stop > start:
                yield from self._placed(range(max(run.start, start), run.stop), columns)

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Source`."""
        stored = self._opened.rows
        return [(len(run), stored.nbytes(run, varying)) for run in self._runs]

    def read(
        self, number: int, columns: list[str], rows: int | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """See `Source`."""
        for _, batch in self._placed(self._runs[number], columns):
            step = rows or batch.num_rows
            for begin in range(0, batch.num_rows, step):
                yield batch.slice(begin, step)

    def take(self, columns: Sequence[str], rows: np.ndarray[Any, Any]) -> pa.RecordBatch:
        """Returns some columns of some rows, int64 (n,), in that order.

        Raises:
            IndexError: a row number is out of range.
            SchemaError: a value is not what the features tell.
        """
        batch = self._opened.rows.take(columns, rows)
        first = int(rows[0]) if len(rows) else 0
        return plain_batch(batch, self._features, Place(self.name, first), self.named_files)

    @cached_property
    def _runs(self) -> list[range]:
        return self._opened.rows.groups()

    @property
    def stored(self) -> OpenedDataset:
        """The data as they were opened."""
        return self._opened

    def _placed(self, run: range, columns: Sequence[str]) -> Batches:
        first = run.start
        for batch in self._opened.rows.read(run, columns):
            place = Place(self.name, first)
            yield place, plain_batch(batch, self._features, place, self.named_files)
            first += batch.num_rows


def _known(opened: OpenedDataset, options: TableOptions) -> dict[str, Feature]:
    """Returns the features of all columns; SchemaError if a wanted one is not known."""
    found = {name: opened.features.get(name, Plain()) for name in opened.rows.schema.names}
    unknown = set()
    for path, feature, listed in leaf_features(found):
        if isinstance(feature, Unknown):
            unknown.add(path[0])
            if _is_wanted(path[0], options):
                raise SchemaError(
                    f"{opened.name}: column {path[0]!r} has the feature type {feature.type!r}, "
                    "which fastio does not support; leave it out by choosing other columns "
                    "(columns=..., --columns), or cast it to an Arrow type"
                )
        if isinstance(feature, Picture) and listed and _is_named(path, options):
            raise SchemaError(
                f"{opened.name}: column {'.'.join(path)!r} contains lists of images, and "
                "fastio reads one image per row: give each image its own row (dataset.map "
                "with batched=True), or leave the column out by choosing other columns "
                "(columns=..., --columns)"
            )
    return {name: Unknown("") if name in unknown else feature for name, feature in found.items()}


def _is_wanted(name: str, options: TableOptions) -> bool:
    if options.columns is None:
        return True
    named = [*options.columns, *(n for members in options.groups.values() for n in members)]
    return any(n == name or n.startswith((f"{name}.", f"{name}_")) for n in named)


def _is_named(path: tuple[str, ...], options: TableOptions) -> bool:
    """Returns whether a column is wanted by its name or by that of a struct that it is in."""
    if options.columns is None:
        return True
    above = {"_".join(path[:end]).replace(".", "_") for end in range(1, len(path) + 1)}
    return any(name.replace(".", "_") in above for name in options.columns)


def open_groups(
    table: HuggingFaceTable,
    options: TableOptions,
    *,
    filters: Any = None,
    like: TableDataset | None = None,
    **settings: Any,
) -> TableDataset:
    """Returns the row groups of a dataset without images; see `TableDataset`."""
    wanted = Filter.of(filters, table.schema, table.name)
    opened = Opened((), [table], wanted, stamp=table.stamp)
    return TableDataset(opened, options, like=like, **settings)


def nested_field(kind: pa.DataType) -> Array | Text | None:
    """Returns the field of lists of lists of numbers, or of lists of strings; None for others."""
    if field_or_none(kind) is not None or not is_list(kind):
        return None
    if is_text(kind.value_type):
        return Text(listed=True)
    shape = _shape(kind)
    for _ in shape:
        kind = kind.value_type
    field = field_or_none(kind)
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return Array(field.dtype, shape) if isinstance(field, Scalar) and plain else None


def nested_values(
    array: pa.Array, leaf: Leaf, field: Array | Text, place: Place
) -> list[NDArray[Any]] | list[list[str]]:
    """Returns each row's numbers as an array of the field's dtype, or its strings.

    Raises:
        SchemaError: a value is null, or lists in a list differ in their lengths.
    """
    if isinstance(field, Text):
        return _strings(array, leaf, place)
    found = []
    for row, value in enumerate(array):
        try:
            found.append(_as_array(value.as_py(), field))
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"{place.column(leaf.spoken)}, row {place.row(row)} has a null, or lists of "
                f"different lengths, and cannot become an array ({error}); leave the column "
                "out by choosing other columns (columns=..., --columns)"
            ) from error
    return found


def _strings(array: pa.Array, leaf: Leaf, place: Place) -> list[list[str]]:
    try:
        found: list[list[str]] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{place.column(leaf.spoken)} is not UTF-8 in {place.rows(len(array))}: {error}"
        ) from error
    for row, strings in enumerate(found):
        if strings is None or None in strings:
            raise SchemaError(
                f"{place.column(leaf.spoken)}, row {place.row(row)} is null instead of a "
                "string: fill it with dataset.map, or leave the column out by choosing other "
                "columns (columns=..., --columns)"
            )
    return found


def _as_array(value: Any, field: Array) -> NDArray[Any]:
    if value is None:
        raise TypeError("there is no value")
    array = np.array(value, field.dtype)
    shape = field.shape or ()
    if array.ndim < len(shape) and not array.size:  # of empty lists NumPy knows the outer ones only
        return np.zeros(
            [*array.shape, *(length or 0 for length in shape[array.ndim :])], array.dtype
        )
    if array.ndim != len(shape):
        raise ValueError(f"its shape is {array.shape}")
    return array


def _shape(kind: pa.DataType) -> tuple[int | None, ...]:
    """Returns the lengths of lists in lists, None where they differ."""
    shape: tuple[int | None, ...] = ()
    while is_list(kind):
        fixed = pa.types.is_fixed_size_list(kind)
        shape, kind = (*shape, kind.list_size if fixed else None), kind.value_type
    return shape


@dataclass(frozen=True)
class Chosen:
    """The fields that are made of a dataset's columns.

    Attributes:
        schema: All fields, in order.
        table, options, conversion: The columns and options of `conversion`, which makes all fields
            but images and nested ones; None if there are no others.
        nested: The columns of fields that are lists of lists, or of strings, by the fields' names.
    """

    schema: Schema
    table: pa.Schema
    options: TableOptions
    conversion: Conversion | None
    nested: Mapping[str, Leaf]


def wants_rows(table: HuggingFaceTable, options: TableOptions) -> bool:
    """Returns whether fields are wanted that row groups do not have: images and nested lists."""
    special = {*table.images, *_nested(table)}
    if options.columns is not None:
        special &= {name.replace(".", "_") for name in options.columns}
    return bool(special)


def choose_fields(table: HuggingFaceTable, options: TableOptions) -> Chosen:
    """Returns the fields of a dataset.

    Raises:
        SchemaError: a wanted column is not there or cannot be stored, or two fields have one name.
    """
    nested = _nested(table)
    special: dict[str, Field] = {name: Image(p.mode) for name, (_, p) in table.images.items()}
    special |= {name: field for name, (_, field) in nested.items()}
    kept, rest = _without(table.schema, {leaf.path for leaf, _ in nested.values()}), options
    for name in special:
        _refuse_options(table.name, name, options)
    if options.columns is not None:
        named = tuple(n for n in options.columns if n.replace(".", "_") not in special)
        rest = replace(options, columns=named)
        wanted = {n.replace(".", "_") for n in options.columns}
        special = {name: field for name, field in special.items() if name in wanted}
    conversion = None
    if len(kept) and (rest.columns is None or rest.columns or rest.groups):
        conversion = Conversion(kept, rest, table.name)
    plain = None if conversion is None else conversion.schema()
    fields = {} if plain is None else dict(plain.fields)
    for name in special:
        if name in fields:
            raise SchemaError(
                f"{table.name}: two fields would have the name {name!r}: rename the group or "
                "the column"
            )
    order = _order(table, options, conversion, special)
    schema = Schema({name: (special | fields)[name] for name in order})
    kept_nested = {name: leaf for name, (leaf, _) in nested.items() if name in special}
    return Chosen(with_classes(schema, table.classes), kept, rest, conversion, kept_nested)


def _nested(table: HuggingFaceTable) -> dict[str, tuple[Leaf, Array | Text]]:
    found = {}
    for name, leaf in leaves(table.schema, table.name).items():
        field = nested_field(leaf.type)
        if field is not None:
            found[name] = leaf, field
    return found


def _without(schema: pa.Schema, paths: set[tuple[str, ...]]) -> pa.Schema:
    """Returns a table's columns without some, which may be parts of structs."""

    def pruned(kind: pa.DataType, path: tuple[str, ...]) -> pa.DataType | None:
        if path in paths:
            return None
        if not pa.types.is_struct(kind):
            return kind
        kept = [(child.name, pruned(child.type, (*path, child.name))) for child in children(kind)]
        kept = [(name, child) for name, child in kept if child is not None]
        return pa.struct(kept) if kept else None

    found = [(field.name, pruned(field.type, (field.name,))) for field in schema]
    return pa.schema([(name, kind) for name, kind in found if kind is not None], schema.metadata)


def _order(
    table: HuggingFaceTable,
    options: TableOptions,
    conversion: Conversion | None,
    special: Mapping[str, Field],
) -> list[str]:
    """Returns the names of all fields, as `columns` has them or in the order of the columns."""
    made = [] if conversion is None else list(conversion.schema().fields)
    if options.columns is not None:
        listed = [name.replace(".", "_") for name in options.columns]
        named = {name: place for place, name in enumerate(listed)}
    else:
        columns = {name: at for at, name in enumerate(table.stored.rows.schema.names)}
        sources = [] if conversion is None else conversion.sources()
        named = {}
        for field, column in sources:
            named.setdefault(field, columns[column])
        for name, (path, _) in table.images.items():
            named[name] = columns[path[0]]
        for name, (leaf, _) in _nested(table).items():
            named[name] = columns[leaf.path[0]]
    last = len(named)

    def place(name: str) -> int:
        return named.get(name, named.get(name.removesuffix(VALID_SUFFIX), last))

    return sorted([*special, *made], key=place)


def _refuse_options(where: str, name: str, options: TableOptions) -> None:
    for what, given in (("dtypes", options.dtypes), ("nulls", options.nulls)):
        if any(key.replace(".", "_") == name for key in given):
            raise SchemaError(
                f"{where}: {name!r} cannot have {what}: it contains images or nested lists"
            )
    for group, members in options.groups.items():
        if any(member.replace(".", "_") == name for member in members):
            raise SchemaError(
                f"{where}: {name!r} cannot be in the group {group!r}: groups contain numbers only"
            )
