"""Rows of fields as what indexing a dataset gives: numbers, strings, bytes and arrays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fastio.schema import Array, Field, Scalar, Text
from fastio.sources.table.values import Ragged


def listed(rows: Ragged, kind: Field) -> list[Any]:
    """Rows of differing lengths as str, bytes or arrays of their own."""
    ends = rows.offsets.tolist()
    parts = [rows.values[begin:end] for begin, end in pairwise(ends)]
    if isinstance(kind, Array):
        return [np.array(part) for part in parts]
    if isinstance(kind, Text):
        return [part.tobytes().decode() for part in parts]
    return [part.tobytes() for part in parts]


def sample_value(value: Any, kind: Field) -> Any:
    """A row's value; numbers that Python has without loss are its own."""
    if isinstance(kind, Scalar) and kind.dtype in ("int64", "float64", "bool"):
        return value.item()
    return value
