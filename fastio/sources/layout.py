"""Where fields lie in a shard, as the engine's threads need to know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio._native import FieldKind as FieldKind

# Offset in the file, bytes, CRC-32C of them or None.
Extent = tuple[int, int, int | None]
# int64 (rows + 1,), where each row's segments begin; int64 and int32, each segment's first token in
# its shard, and how many it has.
Segments = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]


@dataclass(frozen=True)
class TableField:
    """A field of fixed width: bytes [offset, offset + nbytes) of each row of a column.

    Attributes:
        name: of the field.
        shape: of a row in a batch.
        dtype: in a batch.
        column: number of the column.
        offset: in bytes from where a row of the column begins.
        nbytes: of a row, as stored.
        kind: what becomes of them; numbers of `item` bytes are widened to `dtype`.
        item: bytes of a stored number.
        fill: what stands where a row of segments has no token.
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
        """What `fastio._native.Table` takes."""
        to = 1 if self.kind == FieldKind.BYTES else np.dtype(self.dtype).itemsize
        return (self.column, self.offset, self.nbytes, self.kind.value, self.item, to, self.fill)


Ranges = list[tuple[int, int]]  # offset in the file, bytes


@dataclass(frozen=True)
class ShardPlace:
    """Where the columns lie in one shard's file, and which of its tokens make up which row."""

    columns: Sequence[Extent]
    segments: Segments | None = None
