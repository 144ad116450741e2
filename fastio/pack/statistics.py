"""Statistics of a table's columns: counts, minimum, maximum, mean and standard deviation.

Nulls and NaN are excluded. Each shard's statistics depend only on its rows. They are merged in the
order of the shards (Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", eq.
2.1), so that an interrupted and resumed pack gives bit-identical results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.sources.table.columns import Column
from fastio.sources.table.values import Ragged


@dataclass(frozen=True)
class Moments:
    """The statistics of some values of a column.

    Attributes:
        count: The number of values, without nulls and NaN; the only number for text and bytes.
        nulls, nans: The numbers of nulls and of NaN.
        min, max: The extremes; None without values.
        mean, squares: The mean, and the sum of squared differences from it.
    """

    count: int = 0
    nulls: int = 0
    nans: int = 0
    min: int | float | None = None
    max: int | float | None = None
    mean: float = 0.0
    squares: float = 0.0

    def merged(self, other: Moments) -> Moments:
        """Returns the statistics of both sets of values together."""
        nulls, nans = self.nulls + other.nulls, self.nans + other.nans
        if not self.count or not other.count:
            some = self if self.count else other
            return replace(some, nulls=nulls, nans=nans)
        count = self.count + other.count
        if self.min is None or other.min is None or self.max is None or other.max is None:
            return Moments(count, nulls, nans)
        difference = other.mean - self.mean
        return Moments(
            count,
            nulls,
            nans,
            min(self.min, other.min),
            max(self.max, other.max),
            self.mean + difference * (other.count / count),
            self.squares + other.squares + difference**2 * (self.count * (other.count / count)),
        )


def moments(column: Column, begin: int, end: int) -> Moments:
    """Returns the statistics of rows [begin, end) of a column."""
    values, missing = column.values, column.missing
    nulls = 0 if column.nulls is None else int(np.count_nonzero(column.nulls[begin:end]))
    if values is None:
        return Moments(end - begin - nulls, nulls)
    if isinstance(values, Ragged):
        first, last = int(values.offsets[begin]), int(values.offsets[end])
        values = values.values
    else:
        first, last = begin, end
    values = values[first:last].reshape(-1)
    if missing is not None:
        there = ~missing[first:last].reshape(-1)
        nulls += len(there) - int(np.count_nonzero(there))
        values = values[there]
    return _of_numbers(values, nulls)


def _of_numbers(values: NDArray[Any], nulls: int) -> Moments:
    if not len(values):
        return Moments(0, nulls)
    low, nans = values.min(), 0
    if low != low:  # the minimum is NaN if any value is
        numbers = values[~np.isnan(values)]
        nans = len(values) - len(numbers)
        if not len(numbers):
            return Moments(0, nulls, nans)
        values, low = numbers, numbers.min()
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        mean = float(wide.sum()) / len(wide)
        wide -= mean
        # Not np.dot, whose result depends on the number of threads of the BLAS library.
        squares = float(np.einsum("i,i", wide, wide))
        return Moments(len(wide), nulls, nans, low.item(), values.max().item(), mean, squares)


def to_json(parts: Sequence[Moments]) -> list[Any]:
    """Returns one shard's statistics as JSON values. Floats are preserved exactly."""
    return [list(asdict(part).values()) for part in parts]


def from_json(value: Sequence[Any]) -> list[Moments]:
    """Parses the result of `to_json`."""
    return [Moments(*part) for part in value]


def described(
    columns: Sequence[tuple[str, str]],
    sums: Sequence[Moments],
    texts: frozenset[str],
    vocabularies: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """Returns the columns' statistics in the form of manifests.

    Args:
        columns: The field and name of each column.
        sums: The statistics of each column.
        texts: The fields of text or bytes, which have only counts.
        vocabularies: The words of fields that have a vocabulary. Their codes are not quantities.
    """
    found = []
    for (field, name), total in zip(columns, sums, strict=True):
        about: dict[str, Any] = {"field": field, "column": name, "count": total.count}
        about |= {"nulls": total.nulls, "nan": total.nans}
        if field in vocabularies:
            about["distinct"] = len(vocabularies[field])
        elif field not in texts:
            deviation = math.sqrt(total.squares / total.count) if total.count else None
            mean = total.mean if total.count else None
            about |= {"min": total.min, "max": total.max, "mean": mean, "std": deviation}
        found.append({key: _finite(value) for key, value in about.items()})
    return found


def _finite(value: Any) -> Any:
    """Replaces infinities and NaN by None, because JSON has none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
