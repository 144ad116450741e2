"""Arrays in memory as a kind of data: recognises, opens, describes and packs them."""

from __future__ import annotations

from typing import Any

from fastio.sources.arrays import ArrayDataset, ArraySet, array_set
from fastio.sources.base import Findings, Found, Kind, Options, Progress, described
from fastio.sources.torchvision_sets import held_set


def _sniff(source: Any, options: Options) -> ArraySet | None:
    """Returns arrays, or the arrays of a torchvision dataset without transforms; None otherwise."""
    held = held_set(source)
    if held is None:
        return array_set(source, options.images)
    changed = held.transform is not None or held.target_transform is not None
    return None if changed else held.arrays


def _open(found: Found) -> ArrayDataset:
    return ArrayDataset(found.parts)


def _describe(found: Found) -> dict[str, Any]:
    dataset = _open(found)
    return described(dataset, sum(array.nbytes for array in dataset.arrays.columns.values()))


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    dataset = _open(found)  # nothing in memory can be damaged
    return Findings(dataset.path, 0, 0, len(dataset), [])


def _pack(found: Found, skip_damaged: bool) -> ArrayDataset:
    return found.source if isinstance(found.source, ArrayDataset) else _open(found)


ARRAYS = Kind(
    "arrays",
    "arrays in memory",
    (ArrayDataset,),
    frozenset({"images"}),
    _sniff,
    _open,
    _describe,
    _check,
    _pack,
)
