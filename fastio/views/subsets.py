"""Subset and ConcatDataset of torch, and views, as rows of the datasets that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from torch.utils.data import ConcatDataset, Subset

from fastio.packed.grouping import starts_of
from fastio.sources.subset_indices import check_indices
from fastio.views.base import View

Rows = npt.NDArray[np.int64]


def parts_of(dataset: object) -> tuple[list[Any], Rows | None]:
    """Returns the datasets that a Subset, a ConcatDataset or a view is made of, and which rows.

    A Subset or ConcatDataset may be made of others of them.

    Returns:
        The datasets, each once; and which rows of these, one after the other, int64 (n,), None for
        all. Of another dataset, or a Subset whose indices are no row numbers: itself, and None.

    Raises:
        IndexError: an index is out of range.
    """
    if isinstance(dataset, View):
        return list(dataset.parts), dataset.picked
    if type(dataset) is Subset:
        parts, rows = parts_of(dataset.dataset)
        indices = _row_numbers(dataset.indices)
        if indices is None or not all(isinstance(part, Sized) for part in parts):
            return [dataset], None
        count = sum(map(len, parts)) if rows is None else len(rows)
        check_indices(indices, count)
        indices = np.where(indices < 0, indices + count, indices)
        return parts, indices if rows is None else rows[indices]
    if type(dataset) is ConcatDataset:
        found = [parts_of(part) for part in dataset.datasets]
        if all(isinstance(part, Sized) for parts, _ in found for part in parts):
            return _one_after_the_other(found)
    return [dataset], None


def is_concat(dataset: object) -> bool:
    """Returns whether a dataset is a ConcatDataset of torch."""
    return type(dataset) is ConcatDataset


def inside(dataset: Any, keep: Callable[[list[Any]], list[Any]]) -> tuple[Any, list[Any]]:
    """Returns a value that is equal while a Subset has the same indices, and the datasets inside.

    Args:
        dataset: a Subset, a ConcatDataset or a view. For any other dataset, the datasets inside
            are the dataset itself.
        keep: called with a list of indices; returns a copy, or the list itself.
    """
    if type(dataset) is ConcatDataset:
        return None, list(dataset.datasets)
    if isinstance(dataset, View):
        return None, list(dataset.parts)
    if type(dataset) is not Subset:
        return None, [dataset]
    indices: Any = dataset.indices
    if type(indices) is list and indices and type(indices[0]) is int:
        # Comparing two lists takes a fiftieth of the time of converting one to an array.
        return keep(indices), [dataset.dataset]
    numbers = _row_numbers(indices)
    digest = None if numbers is None else xxhash.xxh3_64_intdigest(numbers.tobytes())
    return digest, [dataset.dataset]


def picked_parts(parts: Sequence[Any], picked: Rows) -> tuple[list[Any], Rows]:
    """Returns the datasets that have picked rows, and the rows as numbers in these datasets.

    Args:
        parts: datasets whose rows are numbered one after the other.
        picked: int64 (n,), row numbers. If there are none, the first dataset is returned.
    """
    starts = starts_of(list(map(len, parts)))
    number = np.searchsorted(starts, picked, side="right") - 1
    kept = [parts[each] for each in np.unique(number).tolist()] or [parts[0]]
    _, place = np.unique(number, return_inverse=True)
    return kept, picked - starts[number] + starts_of(list(map(len, kept)))[place]


def split_parts(parts: Sequence[Any], picked: Rows) -> list[Any]:
    """Returns a Subset of each of several datasets, in the order in which rows were picked.

    Args:
        parts: datasets whose rows are numbered one after the other.
        picked: int64 (n,), row numbers.
    """
    found, first = [], 0
    for part in parts:
        inside = picked[(picked >= first) & (picked < first + len(part))] - first
        found.append(Subset(part, inside))  # type: ignore[arg-type]
        first += len(part)
    return found


def _row_numbers(indices: Any) -> Rows | None:
    """Returns indices as int64 (n,), or None if they are no row numbers."""
    try:
        numbers = np.asarray(indices)
    except ValueError:  # lists of unequal lengths
        return None
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
        return None
    return numbers.astype(np.int64, copy=False)


def _one_after_the_other(
    found: Sequence[tuple[list[Any], Rows | None]],
) -> tuple[list[Any], Rows | None]:
    """Returns several results of `parts_of` as one."""
    every = [part for parts, _ in found for part in parts]
    distinct = list({id(part): part for part in every}.values())
    if len(distinct) == len(every) and all(rows is None for _, rows in found):
        return distinct, None
    sizes = [len(part) for part in distinct]
    ends = np.cumsum(sizes)
    begins = {id(part): int(end) - n for part, end, n in zip(distinct, ends, sizes, strict=True)}
    numbers = []
    for parts, rows in found:
        own = [np.arange(begins[id(part)], begins[id(part)] + len(part)) for part in parts]
        joined = np.concatenate(own)
        numbers.append(joined if rows is None else joined[rows])
    return distinct, np.concatenate(numbers)
