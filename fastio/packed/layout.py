"""Where columns of fixed width lie in a shard, as the native engine needs to know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fastio._native import FieldKind as FieldKind
from fastio.schema import RECORD_COLUMN, row_bytes, row_shape

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.shard import ShardReader

Ranges = list[tuple[int, int]]  # offset in the file, bytes
# int64 (rows + 1,), where each row's segments begin; int64 and int32, each segment's first token in
# its shard, and how many it has.
Segments = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]


@dataclass(frozen=True)
class TableField:
    """A field of fixed width: bytes [offset, offset + nbytes) of each row of a column.

    Attributes:
        name: name of the field.
        shape: shape of a row in a batch.
        dtype: dtype in a batch.
        column: number of the column.
        offset: offset in bytes from the beginning of a row of the column.
        nbytes: stored size of a row.
        kind: how the bytes are converted; numbers of `item` bytes are widened to `dtype`.
        item: size of a stored number in bytes.
        fill: value where a row of segments has no token.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    column: int
    offset: int
    nbytes: int
    kind: FieldKind = FieldKind.BYTES
    item: int = 1
    fill: int = 0

    def native(self) -> tuple[int, int, int, int, int, int, int]:
        """Returns the arguments of `fastio._native.Table` for this field."""
        to = 1 if self.kind == FieldKind.BYTES else np.dtype(self.dtype).itemsize
        return (self.column, self.offset, self.nbytes, self.kind.value, self.item, to, self.fill)


@dataclass(frozen=True)
class ShardPlace:
    """Where the columns lie in one shard's file, and which of its tokens make up which row."""

    columns: Ranges
    segments: Segments | None = None


class Layout(Protocol):
    """The places of a dataset's fields in its shards.

    Attributes:
        dataset: The dataset of the shards.
        fields: The fields in the order of the native table.
        strides: The distance in bytes between rows, for each column.
        first_row: int64 (n + 1,), the first row of each shard with rows, and the number of rows.
    """

    dataset: Dataset
    first_row: npt.NDArray[np.int64]

    @property
    def fields(self) -> Sequence[TableField]: ...
    @property
    def strides(self) -> Sequence[int]: ...

    def shard(self, number: int) -> int:
        """Returns the shard of an index of `first_row`."""
        ...

    def place(self, number: int, reader: ShardReader) -> ShardPlace:
        """Returns the places of the columns in the shard's file, or raises ShardCorrupt."""
        ...

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Returns the ranges of rows [first, last), local to a shard, in its file."""
        ...


class FixedWidth:
    """The layout of Scalar fields, and Array fields with a shape; see `layout.Layout`."""

    def __init__(self, dataset: Dataset, names: Sequence[str]) -> None:
        self.dataset = dataset
        manifest, kinds = dataset.manifest, dataset.schema.fields
        layout = dataset.schema.record_layout
        offsets: Mapping[str, int] = {} if layout is None else layout.offsets
        columns = {name: row_bytes(kinds[name]) for name in names if name not in offsets}
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
                row_bytes(kinds[name]),
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
