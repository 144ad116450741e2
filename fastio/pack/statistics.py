"""What a table's columns hold: counts, extremes, mean and deviation, shard by shard and in sum.

Nulls and NaN are left out. A shard's part is computed from its rows alone, and parts are merged
in the shards' order (Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance",
eq. 2.1), so that an interrupted pack gives the same figures, to the last bit, as another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.formats.tables import Column, Ragged


@dataclass(frozen=True)
class Moments:
    """Of some values of a column.

    Attributes:
        count: values that are numbers, or text or bytes, of which there is nothing else to tell.
        nulls: values that the source had no value for.
        nans: values that are no number.
        min, max: of the numbers; None without any.
        mean: of the numbers.
        squares: sum of the squared differences from the mean.
    """

    count: int = 0
    nulls: int = 0
    nans: int = 0
    min: int | float | None = None
    max: int | float | None = None
    mean: float = 0.0
    squares: float = 0.0

    def merged(self, other: Moments) -> Moments:
        """Of these values and those together."""
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
    """Of rows [begin, end) of a column."""
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
    if low != low:  # one of them is NaN
        numbers = values[~np.isnan(values)]
        nans = len(values) - len(numbers)
        if not len(numbers):
            return Moments(0, nulls, nans)
        values, low = numbers, numbers.min()
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        mean = float(wide.sum()) / len(wide)
        wide -= mean
        # Not np.dot, whose sums depend on the number of threads that a BLAS takes.
        squares = float(np.einsum("i,i", wide, wide))
        return Moments(len(wide), nulls, nans, low.item(), values.max().item(), mean, squares)


def to_json(parts: Sequence[Moments]) -> list[Any]:
    """One shard's, for the journal; all floats come back from it as they are."""
    return [list(asdict(part).values()) for part in parts]


def from_json(value: Sequence[Any]) -> list[Moments]:
    """What `to_json` gave."""
    return [Moments(*part) for part in value]


def described(
    columns: Sequence[tuple[str, str]],
    sums: Sequence[Moments],
    texts: frozenset[str],
    vocabularies: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """The columns' statistics as manifests have them.

    Args:
        columns: field and name of each column.
        sums: theirs.
        texts: the fields that are text or bytes, of which there are counts alone.
        vocabularies: words of the fields that have some, of which codes are no quantities.
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
    """JSON has no infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
