"""Where the fixed-width fields of a packed dataset lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastio.packed.layout import Ranges, ShardPlace, TableField
from fastio.packed.shard import ShardReader
from fastio.schema import RECORD_COLUMN, Field, row_shape

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset


class FixedWidth:
    """The layout of Scalar fields, and Array fields with a shape; see `layout.Layout`."""

    def __init__(self, dataset: Dataset, names: Sequence[str]) -> None:
        self.dataset = dataset
        manifest, kinds = dataset.manifest, dataset.schema.fields
        layout = dataset.schema.record_layout
        offsets: Mapping[str, int] = {} if layout is None else layout.offsets
        columns = {name: _row_bytes(kinds[name]) for name in names if name not in offsets}
        if layout is not None and len(columns) < len(names):
            columns[RECORD_COLUMN] = layout.nbytes
        self._columns = list(columns)
        self.strides: Sequence[int] = list(columns.values())
        homes = {name: RECORD_COLUMN if name in offsets else name for name in names}
        self.fields: Sequence[TableField] = [
            TableField(
                name,
                *row_shape(kinds[name]),
                self._columns.index(homes[name]),
                offsets.get(name, 0),
                _row_bytes(kinds[name]),
            )
            for name in names
        ]
        self.first_row = np.append(manifest.first_row, manifest.rows).astype(np.int64)

    def shard(self, number: int) -> int:
        """Returns the shard of an index of `first_row`."""
        return number

    def place(self, number: int, reader: ShardReader) -> ShardPlace:
        """Returns the places of the columns in the shard's file."""
        return ShardPlace([reader.extent(column) for column in self._columns])

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Returns the ranges of rows [first, last) in a shard's file."""
        found = []
        for column, stride in zip(self._columns, self.strides, strict=True):
            offset = reader.extent(column)[0]
            found.append((offset + first * stride, (last - first) * stride))
        return found


def _row_bytes(kind: Field) -> int:
    shape, dtype = row_shape(kind)
    return math.prod(shape) * np.dtype(dtype).itemsize
