"""The base class of views: datasets whose rows are made from those of other datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.order.buckets import Buckets


class View:
    """A dataset whose rows are made from those of other datasets.

    Attributes:
        parts: views of one packed dataset each, whose rows follow one another; a view of one
            packed dataset has itself as its only part.
        picked: int64 (n,), the rows of `parts` that the view consists of; None for all.
    """

    parts: Sequence[Any]
    picked: npt.NDArray[np.int64] | None = None

    def check(self, fields: Sequence[str] | None, *, batched: bool, collates: bool) -> None:
        """Checks the arguments of a loader.

        Args:
            fields: names of the fields to deliver; None for all.
            batched: whether the loader delivers batches.
            collates: whether it has a collate_fn.

        Raises:
            TransformError: the view does not support them.
        """

    def buckets(self) -> Buckets | None:
        """Returns the lengths by which shuffled rows are put into batches; None for any order."""
        return None

    def of_one_length(self, parts: Sequence[Any], arrays: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Returns the parts of a batch with rows of one length.

        Args:
            parts: dicts of tensors or arrays by field.
            arrays: the same values, in memory that can be read now.
        """
        return list(parts)

    def of_batch(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the values that describe a batch as a whole; None for fields to leave out of it.

        Args:
            arrays: the batch by field, in memory that can be read now.
        """
        return {}


def view_of(dataset: object) -> View | None:
    """Returns the dataset if it is a view, else None."""
    return dataset if isinstance(dataset, View) else None


def part_of(view: View, row: int) -> tuple[Any, int]:
    """Returns the part of a view that has a row, and the row's number there."""
    picked = view.picked
    row = row if picked is None else int(picked[row])
    for part in view.parts:
        if row < len(part):
            return part, row
        row -= len(part)
    raise IndexError(f"row {row} does not exist")
