"""The layout of a record: a row's fields of fixed width, and its number, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.batch import AnyArray
from fastio.formats.tables import Part
from fastio.schema import Schema

_PLACE_BYTES = 4  # of a record's position in its bucket
_ALIGNMENT = 8
_BUCKET_BYTES = 384 << 10  # about, of records: a part of a processor's second cache

RawBytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FixedField:
    """A field of fixed width in a record.

    Attributes:
        name: the field's.
        dtype: of its numbers.
        shape: of a row.
        width: bytes of a row.
        offset: of its first byte in a record.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    width: int
    offset: int


class Records:
    """How records are laid out, and how they are filled and emptied.

    Args:
        schema: of the fields.
        fixed: those of fixed width: shape, and bytes, of a row.

    Attributes:
        fields: by name.
        stride: bytes of a record.
        shift: a bucket, see native/core/interleave.h, has 2**shift records.
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
        """Memory for a chunk of so many records."""
        return rows * (self.stride + _PLACE_BYTES)

    def buckets(self, rows: int) -> int:
        """Buckets of a chunk of so many records."""
        return -(-rows >> self.shift)

    def columns(
        self, parts: Sequence[Part], rows: npt.NDArray[np.int64], begin: int, end: int
    ) -> list[tuple[RawBytes, int]]:
        """Rows [begin, end) of what fields are made of, for `_native.interleave`.

        Args:
            parts: each with all rows.
            rows: int64 (end - begin,), their numbers.
        """
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
        """Puts a chunk's records to their places.

        Args:
            memory: the chunk's.
            count: its records.
            chunk_rows: that it has room for.
            out: for each field an array (count, *shape).

        Returns:
            int64 (count,): the rows' numbers.
        """
        rows = np.empty(count, np.int64)
        targets = [(_raw(rows), self._row_offset)]
        for field in self.fields.values():
            if field.width:
                targets.append((_raw(out[field.name]), field.offset))
        _native.deal(memory, count, chunk_rows, self.shift, self.stride, targets)
        return rows


def _raw(values: AnyArray) -> RawBytes:
    """An array's bytes; a copy where they do not lie one after the other."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
