"""Which fields of a table are numbers and which are ids, and how large the numbers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import fastio

# The rows that means and deviations are taken of are the first ones, about a million.
_BATCH_ROWS, _BATCHES = 1 << 16, 16


@dataclass(frozen=True)
class Columns:
    """Fields that are learned from, single columns or groups of them.

    Attributes:
        dense, sparse: name of a field of numbers, or of ids, and how many columns it has.
    """

    dense: Mapping[str, int]
    sparse: Mapping[str, int]

    @classmethod
    def of(
        cls,
        fields: Mapping[str, Any],
        label: str,
        dense: Sequence[str] | None,
        sparse: Sequence[str] | None,
    ) -> Columns:
        """Those of a schema's fields that are named.

        With neither `dense` nor `sparse`, all fields but the label: a field "dense" and floats are
        numbers, a field "sparse" and integers are ids.

        Raises:
            TrainError: there are none, or one is not there or no number.
        """
        if dense is None and sparse is None:
            left = [name for name in fields if name != label]
            dense = [name for name in left if name == "dense" or _is_float(name, fields[name])]
            sparse = [name for name in left if name not in dense]
        for name in (label, *(dense or ()), *(sparse or ())):
            if name not in fields:
                raise fastio.TrainError(f"there is no field {name!r}, but {', '.join(fields)}")
        if not dense and not sparse:
            raise fastio.TrainError(f"there is no field beside {label!r} to learn from")
        return cls(
            {name: _width(name, fields[name]) for name in dense or ()},
            {name: _width(name, fields[name]) for name in sparse or ()},
        )

    def numbers(self, batch: Mapping[str, Tensor]) -> Tensor:
        """float32 (N, columns) of a batch."""
        return _side_by_side(batch, self.dense, torch.float32)

    def ids(self, batch: Mapping[str, Tensor]) -> Tensor:
        """int64 (N, columns) of a batch."""
        return _side_by_side(batch, self.sparse, torch.int64)


def moments(
    data: str, fields: Iterable[str], values: Callable[[Any], Tensor], **arguments: Any
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of columns, float64 (columns,), over the first million rows.

    NaN and infinity are left out; where all numbers are the same, the deviation is 1.

    Args:
        data: what to read.
        fields: the fields that are read.
        values: a batch of them -> its numbers (N, columns).
        arguments: further ones of `fastio.Loader`.
    """
    count = total = square = torch.zeros((), dtype=torch.float64)
    arguments |= {"fields": list(fields), "rank": 0, "world_size": 1}
    with fastio.Loader(data, _BATCH_ROWS, **arguments) as loader:
        for batch in islice(loader, _BATCHES):
            numbers = values(batch).double()
            finite = numbers.isfinite()
            numbers = numbers.where(finite, 0.0)
            count = count + finite.sum(0)
            total = total + numbers.sum(0)
            square = square + numbers.square().sum(0)
    mean = total / count.clamp(min=1)
    variance = square / count.clamp(min=1) - mean.square()
    differ = variance > 1e-12 * mean.square()  # and not by rounding alone
    return mean, variance.where(differ, 1.0).sqrt()


def _side_by_side(
    batch: Mapping[str, Tensor], fields: Mapping[str, int], dtype: torch.dtype
) -> Tensor:
    parts = [batch[name].to(dtype) for name in fields]
    parts = [part.unsqueeze(1) if part.ndim == 1 else part for part in parts]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        some = next(iter(batch.values()))
        return torch.zeros((len(some), 0), dtype=dtype, device=some.device)
    return torch.cat(parts, dim=1)


def _width(name: str, kind: Any) -> int:
    """Columns of a field.

    Raises:
        TrainError: it has no numbers, or not one row of them.
    """
    if isinstance(kind, fastio.Scalar):
        return 1
    if isinstance(kind, fastio.Array) and kind.shape is not None and len(kind.shape) == 1:
        width = kind.shape[0]
        if width is not None and not kind.dtype.startswith("complex"):
            return width
    raise fastio.TrainError(
        f"the field {name!r} is {kind!r}, which is no number or group of numbers: name the fields "
        "to learn from (dense, sparse), or pack what is wanted (--columns)"
    )


def _is_float(name: str, kind: Any) -> bool:
    _width(name, kind)
    return name != "sparse" and str(kind.dtype).startswith("float")
