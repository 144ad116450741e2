"""The layout of a record: the fixed-width fields of a row, followed by the row's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.schema import Schema
from fastio.sources.table.columns import Part

_PLACE_BYTES = 4  # of a record's position in its bucket
_ALIGNMENT = 8
_BUCKET_BYTES = 384 << 10  # approximate size of a bucket, chosen to fit in a processor's L2 cache

RawBytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FixedField:
    """A fixed-width field in a record.

    Attributes:
        name: The name of the field.
        dtype: The dtype of its values.
        shape: The shape of a row.
        width: The size of a row in bytes.
        offset: The offset in the record in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    width: int
    offset: int


class Records:
    """Lays out records, fills them and empties them.

    Args:
        schema: The schema of the fields.
        fixed: The shape and bytes of a row of each fixed-width field.

    Attributes:
        fields: The fields by name.
        stride: The size of a record in bytes.
        shift: A bucket (see native/core/interleave.h) has 2**shift records.
    """

    def __init__(self, schema: Schema, fixed: Mapping[str, tuple[tuple[int, ...], int]]) -> None:
        self.fields: dict[str, FixedField] = {}
        offset = 0
        for name, (shape, width) in fixed.items():
            dtype = str(schema.fields[name].dtype)  # type: ignore[union-attr]
            self.fields[name] = FixedField(name, dtype, shape, width, offset)
            offset += width
        self._row_offset = offset
        self.stride = -(-(offset + 8) // _ALIGNMENT) * _ALIGNMENT
        self.shift = max(4, (_BUCKET_BYTES // self.stride).bit_length() - 1)

    def chunk_bytes(self, rows: int) -> int:
        """Returns the memory in bytes for a chunk of `rows` records."""
        return rows * (self.stride + _PLACE_BYTES)

    def buckets(self, rows: int) -> int:
        """Returns the number of buckets of a chunk of `rows` records."""
        return -(-rows >> self.shift)

    def columns(
        self, parts: Sequence[Part], rows: npt.NDArray[np.int64], begin: int, end: int
    ) -> list[tuple[RawBytes, int]]:
        """Returns rows [begin, end) of the parts of fields, for `_native.interleave`.

        Args:
            parts: The parts, each with all rows.
            rows: int64 (end - begin,), the row numbers.
        """
        # The number of a row is stored with its fields, and identifies the row after the shuffle.
        found = [(_raw(rows), self._row_offset)]
        for part in parts:
            field = self.fields.get(part.field)
            if field is not None and field.width:
                offset = field.offset + part.first * part.values.dtype.itemsize
                found.append((_raw(part.values[begin:end]), offset))
        return sorted(found, key=lambda column: column[1])

    def deal(
        self, memory: RawBytes, count: int, chunk_rows: int, out: Mapping[str, AnyArray]
    ) -> npt.NDArray[np.int64]:
        """Copies a chunk's records to their final places.

        Args:
            memory: The memory of the chunk.
            count: The number of records.
            chunk_rows: The capacity of the chunk in records.
            out: For each field an array (count, *shape).

        Returns:
            int64 (count,), the row numbers.
        """
        rows = np.empty(count, np.int64)
        targets = [(_raw(rows), self._row_offset)]
        for field in self.fields.values():
            if field.width:
                targets.append((_raw(out[field.name]), field.offset))
        _native.deal(memory, count, chunk_rows, self.shift, self.stride, targets)
        return rows


def _raw(values: AnyArray) -> RawBytes:
    """Returns an array's bytes, as a copy if the array is not contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
