"""Lists of lists of numbers, such as the boxes of an image: arrays whose shape differs; and lists
of strings, which stay lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.schema import Array, Field, Image, Scalar, Schema, Text
from fastio.sources.hugging_face.table import HuggingFaceTable
from fastio.sources.table.columns import Conversion
from fastio.sources.table.features import with_classes
from fastio.sources.table.leaves import Leaf, children, field_or_none, is_list, is_text, leaves
from fastio.sources.table.options import VALID_SUFFIX, TableOptions
from fastio.sources.table.reading import Place


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
