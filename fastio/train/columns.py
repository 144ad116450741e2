"""Decides which fields of a table are numbers and which are ids; statistics of the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import fastio
from fastio.train.labels import listed

# The rows that means and deviations are taken of are the first ones, about a million.
_BATCH_ROWS, _BATCHES = 1 << 16, 16

# What float32 holds without rounding.
_IN_FLOAT32 = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
}


@dataclass(frozen=True)
class Columns:
    """The fields that are learned from, single columns or groups of columns.

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
        """Returns the named fields of a schema.

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
                raise fastio.TrainError(
                    f"there is no field {name!r}; the fields are {listed(fields, name)}"
                )
        if not dense and not sparse:
            raise fastio.TrainError(f"there is no field other than {label!r} to learn from")
        return cls(
            {name: _width(name, fields[name]) for name in dense or ()},
            {name: _width(name, fields[name]) for name in sparse or ()},
        )

    def numbers(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the numbers of a batch, float32 (N, columns), or float64 if a field has wider
        numbers.
        """
        exact = all(batch[name].dtype in _IN_FLOAT32 for name in self.dense)
        return _side_by_side(batch, self.dense, torch.float32 if exact else torch.float64)

    def ids(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the ids of a batch, int64 (N, columns)."""
        return _side_by_side(batch, self.sparse, torch.int64)


def moments(
    data: Any, fields: Iterable[str], values: Callable[[Any], Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation of columns, float64 (columns,), of the first million
    rows.

    NaN and infinity are left out; where all numbers are the same, the deviation is 1.

    Args:
        data: what `fastio.Loader` takes.
        fields: the fields that are read.
        values: a batch of them -> its numbers (N, columns).
    """
    count = mean = square = torch.zeros((), dtype=torch.float64)
    with fastio.Loader(data, _BATCH_ROWS, fields=list(fields), rank=0, world_size=1) as loader:
        for batch in islice(loader, _BATCHES):
            numbers = values(batch).double()
            finite = numbers.isfinite()
            added = finite.sum(0)
            own = numbers.where(finite, 0.0).sum(0) / added.clamp(min=1)
            # As Chan, Golub and LeVeque add up parts (1983): points in time have a mean that is
            # large beside their deviation, which a difference of squares would lose.
            shift, both = own - mean, (count + added).clamp(min=1)
            square = square + (numbers - own).where(finite, 0.0).square().sum(0)
            square = square + shift.square() * count * added / both
            mean = mean + shift * added / both
            count = count + added
    deviation = (square / count.clamp(min=1)).sqrt()
    differ = deviation > 1e-12 * mean.abs()  # and not by rounding alone
    return mean, deviation.where(differ, 1.0)


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
    """Returns the number of columns of a field.

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
        f"the field {name!r} is {kind!r}, which is neither a number nor a group of numbers: "
        "choose the input fields with dense and sparse, or pack only the columns that are "
        "needed (--columns)"
    )


def _is_float(name: str, kind: Any) -> bool:
    _width(name, kind)
    return name != "sparse" and str(kind.dtype).startswith("float")
