"""Rows of packed datasets that differ in size: which bytes of a shard each row has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastio.errors import ShardCorrupt
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Tokens

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset

Int64s = NDArray[np.int64]
Shapes = Int64s | list[tuple[int, ...]]  # (n, axes); a list where rows differ in axes


@dataclass(frozen=True)
class RaggedPlaces:
    """Where rows of different sizes lie.

    Attributes:
        readers: The readers of the shards.
        reader: int32 (n,), the index in `readers` of each row.
        begin: int64 (n,), the offset of each row's first byte in its shard's file.
        shapes: The shape of each row.
    """

    readers: list[ShardReader]
    reader: NDArray[np.int32]
    begin: Int64s
    shapes: Shapes


class RaggedRows:
    """A field whose rows differ in size, in local shards. Thread-safe.

    Attributes:
        name, kind: The field: an Array with open axes, or Tokens.
        dtype: The dtype of its numbers.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        kind = dataset.schema.fields[name]
        assert isinstance(kind, (Array, Tokens))
        self.name = name
        self.kind: Array | Tokens = kind
        self.dtype = np.dtype(kind.dtype)
        self._dataset = dataset

    def locate(self, rows: Int64s) -> RaggedPlaces:
        """Returns where rows lie, int64 (n,) in any order."""
        groups = self._dataset.by_shard(rows)
        reader = np.empty(len(rows), np.int32)
        begin = np.empty(len(rows), np.int64)
        shapes: list[Any] = [None] * len(groups)
        readers = [self._dataset.shard(group.shard) for group in groups]
        for number, (_, at, local) in enumerate(groups):
            reader[at] = number
            begin[at], shapes[number] = self._in_shard(readers[number], local)
        together = _in_order([at for _, at, _ in groups], shapes, len(rows))
        return RaggedPlaces(readers, reader, begin, together)

    def forget(self, rows: Int64s) -> None:
        """Opens the damaged shards of rows again on the next read."""
        self._dataset.forget(group.shard for group in self._dataset.by_shard(rows))

    def _in_shard(self, reader: ShardReader, local: Int64s) -> tuple[Int64s, Shapes]:
        """Returns the offsets of rows in a shard's file, and their shapes."""
        item = self.dtype.itemsize
        if isinstance(self.kind, Tokens):
            starts, _ = reader.tokens(self.name)
            first = reader.extent(self.name)[0]
            return first + starts[local] * item, (starts[local + 1] - starts[local])[:, None]
        offsets = reader.offsets(self.name)
        shapes = reader.shapes(self.name, local)
        if isinstance(shapes, list):
            numbers = np.array([math.prod(shape) for shape in shapes], np.int64)
        else:
            numbers = np.prod(shapes, axis=1, dtype=np.int64)
        wrong = numbers * item != offsets[local + 1] - offsets[local]
        if wrong.any():
            place = int(np.argmax(wrong))
            row, shape = int(local[place]), tuple(map(int, shapes[place]))
            raise ShardCorrupt(
                f"{reader.path}: row {row} of the field {self.name!r} has the shape {shape} "
                f"and {int(offsets[row + 1] - offsets[row])} bytes, which do not fit {self.dtype}; "
                "run `fastio verify` on the dataset"
            )
        return reader.extent(self.name)[0] + offsets[local], shapes


def _in_order(at: Sequence[Int64s], shapes: Sequence[Any], count: int) -> Shapes:
    """Returns the shapes of rows in groups as those of one batch."""
    axes = {part.shape[1] if isinstance(part, np.ndarray) else None for part in shapes}
    if len(axes) == 1 and None not in axes:
        out = np.empty((count, shapes[0].shape[1]), np.int64)
        for places, part in zip(at, shapes, strict=True):
            out[places] = part
        return out
    found: list[Any] = [None] * count
    for places, part in zip(at, shapes, strict=True):
        rows = part if isinstance(part, list) else [tuple(row) for row in part.tolist()]
        for place, shape in zip(places.tolist(), rows, strict=True):
            found[place] = shape
    return same_axes(found)


def same_axes(shapes: Sequence[tuple[int, ...]]) -> Shapes:
    """Returns shapes as an array if all have as many axes as the first, else as a list."""
    axes = len(shapes[0]) if len(shapes) else 1
    if any(len(shape) != axes for shape in shapes):
        return list(shapes)
    return np.array(shapes, np.int64).reshape(len(shapes), axes)
