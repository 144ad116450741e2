"""Reads one field of many rows from the shards that they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastio.errors import ShardCorrupt
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Scalar, Tokens


class ShardRows(NamedTuple):
    """The part of some rows that lies in one shard.

    Attributes:
        shard: The number of the shard.
        places: int64 (n,), the positions of these rows among those that were asked for.
        local: int64 (n,), their numbers within the shard.
    """

    shard: int
    places: NDArray[np.int64]
    local: NDArray[np.int64]


def gathered(
    field: str, kind: Any, count: int, groups: list[ShardRows], readers: list[ShardReader]
) -> NDArray[Any] | list[Any]:
    """Returns one field of `count` rows, given the rows by shard and the readers of these shards.

    Raises:
        ShardCorrupt: Values are damaged.
    """
    shape: tuple[int, ...] | None = () if isinstance(kind, Scalar) else None
    if isinstance(kind, Array):
        shape = kind.fixed_shape
    if shape is not None:
        array = np.empty((count, *shape), dtype=kind.dtype)
        for (_, places, local), reader in zip(groups, readers, strict=True):
            stored = reader.fixed(field)[local]
            if array.dtype.kind == "c":  # columns have pairs of numbers
                stored = stored.view(array.dtype)
            array[places] = stored.reshape(-1, *shape)
        return array
    values: list[Any] = [None] * count
    for (_, places, local), reader in zip(groups, readers, strict=True):
        found = _variable_values(reader, field, kind, local)
        for place, value in zip(places.tolist(), found, strict=True):
            values[place] = value
    return values


def _variable_values(
    reader: ShardReader, field: str, kind: Any, local: NDArray[np.int64]
) -> Sequence[Any]:
    if isinstance(kind, Tokens):
        starts, flat = reader.tokens(field)
        bounds = zip(starts[local].tolist(), starts[local + 1].tolist(), strict=True)
        return [flat[begin:end].copy() for begin, end in bounds]
    values = reader.values(field, local)
    if not isinstance(kind, Array):
        return values
    arrays = []
    for row, value in zip(local.tolist(), values, strict=True):
        # A copy, since arrays over bytes are read-only.
        try:
            flat = np.frombuffer(value, dtype=kind.dtype).copy()
            arrays.append(flat.reshape(reader.shape(field, row)))
        except ValueError as error:
            raise ShardCorrupt(
                f"{reader.path} row {row}: the {len(value)} bytes of {field!r} do not form an "
                f"array of {kind.dtype} with the stored shape: {error}"
            ) from error
    return arrays
