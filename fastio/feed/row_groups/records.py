"""The layout of a record: the fixed-width fields of a row, followed by the row's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.packed.layout import TableField
from fastio.schema import Schema
from fastio.sources.table.columns import Part

_ALIGNMENT = 8
_MOST_SHIFT = 20

RawBytes = npt.NDArray[np.uint8]


class Records:
    """Lays out records in blocks of memory, fills them and empties them.

    Args:
        schema: The schema of the fields.
        fixed: The shape and bytes of a row of each fixed-width field.
        block_bytes: The largest size of a block in bytes. A block has at least one record, even if
            the record is larger.

    Attributes:
        fields: The fields by name; a record is a row of column 0.
        stride: The size of a record in bytes.
        shift: A block has 2**shift records.
    """

    def __init__(
        self,
        schema: Schema,
        fixed: Mapping[str, tuple[tuple[int, ...], int]],
        block_bytes: int,
    ) -> None:
        self.fields: dict[str, TableField] = {}
        offset = 0
        for name, (shape, nbytes) in fixed.items():
            dtype = str(schema.fields[name].dtype)  # type: ignore[union-attr]
            self.fields[name] = TableField(name, shape, dtype, 0, offset, nbytes)
            offset += nbytes
        self._row_offset = offset
        self.stride = -(-(offset + 8) // _ALIGNMENT) * _ALIGNMENT
        self.shift = min(_MOST_SHIFT, max(1, block_bytes // self.stride).bit_length() - 1)

    @property
    def block_bytes(self) -> int:
        """The size of a block in bytes."""
        return self.stride << self.shift

    def blocks(self, rows: int) -> int:
        """Returns the number of blocks that `rows` records need."""
        return -(-rows >> self.shift)

    def fill(
        self,
        memory: Sequence[RawBytes],
        first: int,
        parts: Sequence[Part],
        rows: npt.NDArray[np.int64],
        begin: int,
    ) -> None:
        """Writes rows as records.

        Args:
            memory: The blocks.
            first: The number of the first record.
            parts: The parts of fields.
            rows: int64 (n,), the row numbers.
            begin: The first row of the parts to write; n rows are written.
        """
        # The number of a row is stored with its fields, and identifies the row after the shuffle.
        found = [(_raw(rows), self._row_offset)]
        for part in parts:
            field = self.fields.get(part.field)
            if field is not None and field.nbytes:
                offset = field.offset + part.first * part.values.dtype.itemsize
                found.append((_raw(part.values[begin : begin + len(rows)]), offset))
        found.sort(key=lambda column: column[1])
        _native.interleave(found, len(rows), memory, self.stride, self.shift, first)

    def deal(
        self,
        memory: Sequence[RawBytes],
        records: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        out: Mapping[str, AnyArray],
    ) -> None:
        """Copies records to arrays.

        Args:
            memory: The blocks.
            records: int64 (n,), the numbers of the records.
            rows: int64 (n,), which receives the row numbers.
            out: For each field an array (n, *shape), which receives its values.
        """
        targets = [(_raw(rows), self._row_offset)]
        for field in self.fields.values():
            if field.nbytes:
                targets.append((_raw(out[field.name]), field.offset))
        _native.deal(memory, self.stride, self.shift, records, targets)


def _raw(values: AnyArray) -> RawBytes:
    """Returns an array's bytes, as a copy if the array is not contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
