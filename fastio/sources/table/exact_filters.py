"""Comparisons of integer columns with numbers of any type and size, exact as in Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from fastio.packed.ipc import number_dtype

_ORDERED = frozenset({"=", "==", "!=", "<", "<=", ">", ">="})
_AMONG = frozenset({"in", "not in"})


def exact_filters(filters: Any, schema: pa.Schema) -> Any:
    """Returns filters whose comparisons of integer columns with numbers are exact, as in Python.

    The numbers in the result have the types of the columns. Otherwise, pyarrow would convert the
    values of a uint64 column to int64, and those of an integer column to float32 if the number is a
    float. It fails if a value does not fit.

    Args:
        filters: Tuples (column, operator, value), in a list or a list of lists. Anything else, such
            as an expression of pyarrow.dataset, is returned as it is.
        schema: The schema of the table.

    Raises:
        TypeError: A list for an integer column has texts or Booleans. pyarrow would convert them,
            or fail, depending on the statistics of a Parquet file.
    """
    if not isinstance(filters, (list, tuple)):
        return filters
    if not (len(filters) == 3 and isinstance(filters[0], str)):
        return [exact_filters(each, schema) for each in filters]
    name, operator, value = filters
    kind = schema.field(name).type if schema.names.count(name) == 1 else None
    if kind is None or not pa.types.is_integer(kind):
        return filters
    if operator in _ORDERED and _is_number(value):
        return name, *_compared(operator, value, kind)
    if operator in _AMONG and isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return name, operator, _among(value, kind)
    return filters


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _compared(operator: str, value: Any, kind: pa.DataType) -> tuple[str, pa.Scalar]:
    """Returns an operator and a number of a column's type that select the same values of it.

    As for any comparison in pyarrow, a null is never selected.
    """
    least, most = _range(kind)
    none, every = ("<", pa.scalar(least, kind)), (">=", pa.scalar(least, kind))
    if value != value:  # NaN
        return every if operator == "!=" else none
    if isinstance(value, (float, np.floating)) and np.isinf(value):
        whole = most + 1 if value > 0 else least - 1
    elif operator in (">", "<="):
        whole = math.floor(value)  # x > 1.5 means x > 1
    elif operator in ("<", ">="):
        whole = math.ceil(value)
    else:
        whole = int(value)
        if whole != value:
            return every if operator == "!=" else none
    if least <= whole <= most:
        return operator, pa.scalar(whole, kind)
    if operator in ("=", "=="):
        return none
    if operator == "!=":
        return every
    return every if (whole < least) == (operator in (">", ">=")) else none


def _among(values: Any, kind: pa.DataType) -> Any:
    """Returns the numbers that fit the type of a column, as an array of this type.

    If there are values other than numbers and None, all of them are returned as they are.
    TypeError if one of them is a text or a Boolean.
    """
    given = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for value in given:
        if isinstance(value, (bool, np.bool_, str, bytes)):
            raise TypeError(f"{value!r} is in the list, but the column has the type {kind}")
    if not all(value is None or _is_number(value) for value in given):
        return values
    least, most = _range(kind)
    whole = [value for value in given if value is None or _is_whole(value)]
    possible = [value for value in whole if value is None or least <= value <= most]
    return pa.array([None if value is None else int(value) for value in possible], kind)


def _is_whole(value: Any) -> bool:
    return not isinstance(value, (float, np.floating)) or bool(
        np.isfinite(value) and value % 1 == 0
    )


def _range(kind: pa.DataType) -> tuple[int, int]:
    """Returns the least and the largest value of a type of integers."""
    limits = np.iinfo(number_dtype(kind))
    return int(limits.min), int(limits.max)
