"""Lists of lists of numbers, such as the boxes of an image: arrays whose shape differs; and lists
of strings, which stay lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.schema import Array, Scalar, Text
from fastio.sources.table.leaves import Leaf, field_or_none, is_text
from fastio.sources.table.place import Place


def nested_field(kind: pa.DataType) -> Array | Text | None:
    """The field of lists of lists of numbers, or of lists of strings; None for other types."""
    if field_or_none(kind) is not None or not _is_list(kind):
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
    """Each row's numbers as an array of the field's dtype, or its strings.

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
    """The lengths of lists in lists, None where they differ."""
    shape: tuple[int | None, ...] = ()
    while _is_list(kind):
        fixed = pa.types.is_fixed_size_list(kind)
        shape, kind = (*shape, kind.list_size if fixed else None), kind.value_type
    return shape


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
