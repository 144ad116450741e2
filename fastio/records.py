"""The layout of fields of fixed width that are stored side by side, row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_STEP = 32  # bytes: half a cache line, what two neighbouring rows had better not straddle
_SLACK = 8  # the step may add an eighth


@dataclass(frozen=True)
class RecordLayout:
    """The position of each fixed-width field in a row of the column ".record".

    Fields are in the order of the schema, each at a multiple of its item size. The bytes between
    fields and after the last one are zero.

    Attributes:
        nbytes: size of a row: a multiple of the largest item size, and of 32 if that adds at most
            an eighth.
        offsets: offset of each field in the row, in bytes.
        dtype: the row as a NumPy structured dtype. A view of the column's bytes with this dtype,
            indexed by a field, is an array (rows, *shape) of the field's own dtype.
    """

    nbytes: int
    offsets: Mapping[str, int]
    dtype: np.dtype[Any]


def record_layout(fields: Mapping[str, tuple[tuple[int, ...], str]]) -> RecordLayout:
    """Returns the layout of fields, given the shape and the name of the dtype of a row of each."""
    formats: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    offsets = {}
    end = largest = 0
    for name, (shape, dtype) in fields.items():
        item = np.dtype(dtype)
        formats.append((item, shape))
        offsets[name] = end + -end % item.itemsize
        end = offsets[name] + item.itemsize * math.prod(shape)
        largest = max(largest, item.itemsize)
    nbytes = end + -end % largest
    more = -nbytes % _STEP
    if more * _SLACK <= nbytes:
        nbytes += more
    row = np.dtype(
        {
            "names": list(offsets),
            "formats": formats,
            "offsets": list(offsets.values()),
            "itemsize": nbytes,
        }
    )
    return RecordLayout(nbytes, offsets, row)
