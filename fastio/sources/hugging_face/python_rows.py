"""Whether rows that are read here are, as Python's values, what indexing a dataset gives."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

_FEATURES = ("Value", "ClassLabel", "Sequence", "List", "LargeList")
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_NUMBERS = (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_boolean)
_STRINGS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def unlike_python(dataset: Any, left_out: Collection[str] = ()) -> str | None:
    """Why `dataset[i]` is not what a loader makes of a row.

    Args:
        dataset: a `datasets.Dataset`.
        left_out: names of columns that are not looked at.

    Returns:
        A clause; or None where numbers, strings and lists of numbers, none of them null, are all
        that there is.
    """
    given = dataset.format
    if given["type"] not in (None, "python"):
        return f"collate_fn would get rows in the format {given['type']!r}"
    table: pa.Table = dataset.data.table
    names = table.column_names if given["output_all_columns"] else given["columns"]
    for name in names:
        if name in left_out:
            continue
        column = table.column(name)
        feature = type(dataset.features[name]).__name__
        if "." in name or feature not in _FEATURES or not _is_plain(column.type):
            return f"collate_fn would get the column {name!r} ({column.type}) as Python objects"
        if _has_nulls(column):
            return f"the column {name!r} has nulls, and collate_fn gets them as None"
    return None


def _is_plain(kind: pa.DataType) -> bool:
    if any(is_list(kind) for is_list in _LISTS):
        return any(is_number(kind.value_type) for is_number in _NUMBERS)
    return any(is_plain(kind) for is_plain in (*_NUMBERS, *_STRINGS))


def _has_nulls(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return True
    is_list = any(is_list(column.type) for is_list in _LISTS)
    return is_list and any(chunk.values.null_count for chunk in column.chunks)
