"""Rows of packed datasets that differ in size: which bytes of a shard go where in a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.ragged import Form, Int64s, RaggedBatch, open_axis, places, same_axes
from fastio.errors import ShardCorrupt
from fastio.packed import Dataset
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Tokens

Memory = npt.NDArray[np.uint8]


@dataclass
class SpanRead:
    """A field of a batch that native threads copy.

    Attributes:
        batch: the rows; their values are undefined until `slot` is done.
        memory: uint8, memory of the rows.
        slot: the work; None if there are no bytes.
        row: int64 (pieces,), row of the batch for each piece of the slot.
    """

    batch: RaggedBatch
    memory: Memory
    slot: _native.Slot | None = None
    row: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def failures(self) -> dict[int, str]:
        """Returns the rows of the batch that could not be read, and why, after the slot is done."""
        found = [] if self.slot is None else self.slot.failures()
        return {int(self.row[piece]): message for piece, _, message in found}


class Spans:
    """A field of a packed dataset whose rows differ in size.

    Args:
        dataset: packed dataset on this machine.
        name: name of an Array field with open axes, or of a Tokens field.
        form: form of its batches.
    """

    def __init__(self, dataset: Dataset, name: str, form: Form) -> None:
        kind = dataset.schema.fields[name]
        assert isinstance(kind, (Array, Tokens))
        self.name = name
        self._dataset = dataset
        self._kind = kind
        self._form = form
        self._dtype = np.dtype(kind.dtype)
        axis = open_axis(kind)
        self._axis, self._declared = axis or 0, axis is not None

    def read(
        self, engine: _native.Engine, rows: Int64s, acquire: Callable[[int], Memory]
    ) -> SpanRead:
        """Looks up the offsets and shapes of rows and lets threads copy them.

        Args:
            engine: engine whose threads are used.
            rows: int64 (n,), global row numbers.
            acquire: function that returns memory of at least the given number of bytes.

        Raises:
            SchemaError: the shapes of the rows cannot form a batch of this form.
            SourceNotFound, ShardCorrupt: a shard cannot be read.
        """
        found = self._locate(rows)
        at = places(self._form, found.shapes, self._axis)
        item = self._dtype.itemsize
        memory = acquire(math.prod(at.shape) * item)
        values = memory[: math.prod(at.shape) * item].view(self._dtype).reshape(at.shape)
        batch = RaggedBatch(self._form, values, found.shapes, self._axis, self._declared)
        if not len(at.row):
            return SpanRead(batch, memory)
        # An empty column lies nowhere.
        begin = np.where(at.count > 0, found.begin[at.row] + at.begin * item, 0)
        source = np.ascontiguousarray(found.source[at.row])
        nbytes = at.count * item
        try:
            slot = engine.copy(
                [reader.mapping for reader in found.readers],
                source,
                begin,
                nbytes,
                at.target * item,
                at.room * item,
                memory,
            )
        except ValueError as error:
            raise self._outside(found, rows, at.row, begin, nbytes) or error from None
        return SpanRead(batch, memory, slot, at.row)

    def forget(self, rows: Int64s) -> None:
        """Opens the damaged shards of rows again on the next read."""
        self._dataset.forget(group.shard for group in self._dataset.by_shard(rows))

    def _locate(self, rows: Int64s) -> _Located:
        groups = self._dataset.by_shard(rows)
        source = np.empty(len(rows), np.int32)
        begin = np.empty(len(rows), np.int64)
        shapes: list[Any] = [None] * len(groups)
        readers = []
        for number, (shard, at, local) in enumerate(groups):
            reader = self._dataset.shard(shard)
            readers.append(reader)
            source[at] = number
            begin[at], shapes[number] = self._in_shard(reader, local)
        together = _in_order([at for _, at, _ in groups], shapes, len(rows))
        return _Located(readers, source, begin, together)

    def _outside(
        self, found: _Located, rows: Int64s, row: Int64s, begin: Int64s, nbytes: Int64s
    ) -> ShardCorrupt | None:
        """Returns an error for the first piece outside its shard's file; None if there is none.

        Offsets were checked when they were first read, so they have changed in the file since.
        """
        sizes = np.array([len(reader.mapping.data) for reader in found.readers], np.int64)
        wrong = (begin < 0) | (nbytes < 0) | (begin > sizes[found.source[row]] - nbytes)
        if not wrong.any():
            return None
        first = int(row[np.argmax(wrong)])
        return ShardCorrupt(
            f"{found.readers[found.source[first]].path}: row {int(rows[first])} of the dataset, "
            f"field {self.name!r}, leaves the file; run `fastio verify` on the dataset"
        )

    def _in_shard(
        self, reader: ShardReader, local: Int64s
    ) -> tuple[Int64s, Int64s | list[tuple[int, ...]]]:
        """Returns the offsets of rows in a shard's file, and their shapes."""
        item = self._dtype.itemsize
        if isinstance(self._kind, Tokens):
            starts, _ = reader.tokens(self.name)
            first = reader.token_extent(self.name)[0]
            return first + starts[local] * item, (starts[local + 1] - starts[local])[:, None]
        offsets = reader.offsets(self.name)
        shapes = reader.shapes(self.name, local)
        if isinstance(shapes, list):
            numbers = np.array([math.prod(shape) for shape in shapes], np.int64)
        else:
            numbers = np.prod(shapes, axis=1, dtype=np.int64)
        wrong = numbers * item != offsets[local + 1] - offsets[local]
        if wrong.any():
            row = int(local[np.argmax(wrong)])
            raise ShardCorrupt(
                f"{reader.path}: row {row} of the field {self.name!r} has the shape "
                f"{reader.shape(self.name, row)} and "
                f"{int(offsets[row + 1] - offsets[row])} bytes, which do not fit {self._dtype}; "
                "run `fastio verify` on the dataset"
            )
        return reader.data_offset(self.name) + offsets[local], shapes


@dataclass(frozen=True)
class _Located:
    """Rows in files: for each its reader's number, the offset of its first byte, and its shape."""

    readers: list[ShardReader]
    source: npt.NDArray[np.int32]
    begin: Int64s
    shapes: Int64s | list[tuple[int, ...]]


def _in_order(
    at: Sequence[Int64s], shapes: Sequence[Any], count: int
) -> Int64s | list[tuple[int, ...]]:
    """Returns the shapes of rows in groups as those of one batch."""
    axes = {part.shape[1] if isinstance(part, np.ndarray) else None for part in shapes}
    if len(axes) == 1 and None not in axes:
        out = np.empty((count, shapes[0].shape[1]), np.int64)
        for places_, part in zip(at, shapes, strict=True):
            out[places_] = part
        return out
    found: list[Any] = [None] * count
    for places_, part in zip(at, shapes, strict=True):
        rows = part if isinstance(part, list) else [tuple(row) for row in part.tolist()]
        for place, shape in zip(places_.tolist(), rows, strict=True):
            found[place] = shape
    return same_axes(found)
