"""Which ranges of shards the images of consecutive rows lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastio import _native

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset


@dataclass(frozen=True)
class Extent:
    """A range of one shard's bytes."""

    shard: int
    offset: int
    length: int


def extents(dataset: Dataset, first: int, last: int) -> list[Extent]:
    """Returns the ranges of the images of rows [first, last), by shard and then by field.

    This opens the shards. Each range covers a field's rows in order.
    """
    found = []
    for shard, begin, end in spans(dataset, first, last):
        reader = dataset.shard(shard)
        for field in dataset.schema.image_fields:
            offsets = reader.offsets(field)
            offset, stop = int(offsets[begin]), int(offsets[end])
            found.append(Extent(shard, reader.data_offset(field) + offset, stop - offset))
    return found


def spans(dataset: Dataset, first: int, last: int) -> list[tuple[int, int, int]]:
    """Splits rows [first, last) by shard: returns (shard, local begin, local end)."""
    first_row, rows = dataset.manifest.first_row, dataset.manifest.shard_rows
    shard = int(np.searchsorted(first_row, first, side="right")) - 1
    found = []
    while first < last:
        begin = first - int(first_row[shard])
        end = min(int(rows[shard]), last - int(first_row[shard]))
        found.append((shard, begin, end))
        first += end - begin
        shard += 1
    return found


def check_rows(dataset: Dataset, first: int, last: int, parts: Sequence[Any]) -> str | None:
    """Compares images with their checksums, given the bytes of `extents(first, last)`.

    Returns:
        A description of the first problem, which names the row; None if all bytes are right.
    """
    supply = iter(parts)
    for shard, begin, end in spans(dataset, first, last):
        reader = dataset.shard(shard)
        for field in dataset.schema.image_fields:
            data = np.frombuffer(next(supply), np.uint8)
            starts = reader.offsets(field)[begin : end + 1]
            starts = starts - starts[0]
            expected = reader.fixed(f"{field}.crc32c")[begin:end]
            bad = _native.crc32c_mismatch(data, starts, expected)
            if bad >= 0:
                return f"{reader.path} row {begin + bad}: wrong CRC-32C"
    return None
