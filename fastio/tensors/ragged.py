"""Batches of rows that differ in size as tensors, and torch's nested tensors on their way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fastio.engine.ragged import (
    LENGTH_SUFFIX,
    OFFSETS_SUFFIX,
    SHAPE_SUFFIX,
    Form,
    RaggedBatch,
    of_field,
)
from fastio.packed.grouping import starts_of
from fastio.schema import Field


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def ragged_parts(
    name: str, batch: RaggedBatch, view: Callable[[Tensor], Tensor] = _as_it_is
) -> dict[str, Any]:
    """Returns a field of a batch as tensors, which share its memory if possible.

    Args:
        name, batch: the field.
        view: returns a view of rows in which axes behind the open one may have another order.

    Returns:
        The field under its name, followed by:
        "padded": `NAME_length`, int64 (n,), if the field has exactly one open axis; else
        `NAME_shape`, int64 (n, axes).
        "flat": `NAME_offsets`, int64 (n + 1,): row i is [offsets[i], offsets[i + 1]) of the open
        axis.
        "list" and "nested": nothing.
    """
    if batch.form == "list":
        return {name: [view(torch.from_numpy(row)) for row in batch.rows()]}
    values = view(torch.from_numpy(batch.values))
    if batch.form in ("nested", "flat"):
        offsets = torch.from_numpy(starts_of(batch.lengths))
        if batch.form == "nested":
            return {name: nested(values, offsets, batch.axis + 1)}
        return {name: values, name + OFFSETS_SUFFIX: offsets}
    assert not isinstance(batch.shapes, list)
    if batch.declared:  # not what this batch happens to have: all batches have the same fields
        return {name: values, name + LENGTH_SUFFIX: torch.from_numpy(batch.lengths)}
    return {name: values, name + SHAPE_SUFFIX: torch.from_numpy(batch.shapes)}


def ragged_of_lists(data: Any, forms: Mapping[str, Form], kinds: Mapping[str, Field]) -> Any:
    """Returns a batch whose lists of rows are converted to the forms of their fields.

    Args:
        data: a dict, a tuple, or the value of the only field. Rows are tensors on the CPU, which
            are copied.
        forms: forms of the fields that are lists.
        kinds: types of all fields of the batch, in order.
    """

    def converted(name: str, part: Any) -> dict[str, Any]:
        # Lists of images of different sizes own their memory, and stay as they are.
        if name not in forms or any(isinstance(row, list) for row in part):
            return {name: part}
        rows = [row.numpy() for row in part]
        return ragged_parts(name, of_field(rows, forms[name], kinds[name]))

    fields = data if isinstance(data, tuple) else (data,)
    parts = data if isinstance(data, dict) else dict(zip(kinds, fields, strict=True))
    made = [converted(name, part) for name, part in parts.items()]
    if isinstance(data, dict):
        return {key: value for found in made for key, value in found.items()}
    joined = tuple(map(one_part, made))
    return joined if isinstance(data, tuple) else joined[0]


def one_part(found: dict[str, Any]) -> Any:
    """Returns the value of a field in a tuple: the field, or a tuple of it and its sizes."""
    values = tuple(found.values())
    return values if len(values) > 1 else values[0]


# Nested tensors


def nested(values: Tensor, offsets: Tensor, jagged_dim: int, lengths_of: Any = None) -> Tensor:
    """Returns a nested tensor of the jagged layout over consecutive rows.

    Args:
        values: the rows, along the axis jagged_dim - 1.
        offsets: int64 (n + 1,), where each row begins on that axis.
        jagged_dim: the axis of the result whose length differs between rows, from 1.
        lengths_of: the same offsets in memory that can be read now, if `offsets` is being copied.
    """
    # Without these lengths, torch would compute them from the offsets, which waits for the device.
    lengths = (offsets if lengths_of is None else lengths_of).diff()
    few, many = (int(lengths.min()), int(lengths.max())) if lengths.numel() else (0, 0)
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, jagged_dim=jagged_dim, min_seqlen=few, max_seqlen=many
    )


def is_jagged(leaf: Any) -> bool:
    """Returns whether a value is a nested tensor of the jagged layout whose rows have no gaps."""
    jagged = isinstance(leaf, Tensor) and leaf.is_nested and leaf.layout == torch.jagged
    return bool(jagged and leaf.lengths() is None)


def map_jagged(function: Callable[[Tensor], Tensor], leaf: Any) -> Tensor:
    """Returns a nested tensor after a function is applied to its values and to its offsets.

    Values and offsets are separate tensors: both must be pinned, copied or recorded on a stream.
    """
    values, offsets = function(leaf.values()), leaf.offsets()
    known = offsets if offsets.device.type == "cpu" else None
    moved = function(offsets)
    return nested(values, moved, leaf._ragged_idx, known)


def dense(leaf: Any) -> tuple[Tensor, ...]:
    """Returns the values and offsets of a nested tensor; another tensor alone."""
    return (leaf.values(), leaf.offsets()) if is_jagged(leaf) else (leaf,)
