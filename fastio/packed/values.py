"""The values of fields that are not images, from the shards of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastio.errors import ShardCorrupt
from fastio.packed.shard import ShardReader
from fastio.schema import Array, Tokens, fixed_shape

if TYPE_CHECKING:
    from fastio.packed.packed import ShardRows


def values_of(
    field: str, kind: Any, count: int, groups: list[ShardRows], readers: list[ShardReader]
) -> NDArray[Any] | list[Any]:
    """Returns one field of `count` rows, given the rows by shard and the readers of these shards.

    Raises:
        ShardCorrupt: Values are damaged.
    """
    shape = fixed_shape(kind)
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
    shapes = reader.shapes(field, local)
    for row, value, shape in zip(local.tolist(), values, shapes, strict=True):
        # A copy, since arrays over bytes are read-only.
        try:
            flat = np.frombuffer(value, dtype=kind.dtype).copy()
            arrays.append(flat.reshape(shape))
        except ValueError as error:
            raise ShardCorrupt(
                f"{reader.path} row {row}: the {len(value)} bytes of {field!r} do not form an "
                f"array of {kind.dtype} with the stored shape: {error}"
            ) from error
    return arrays
