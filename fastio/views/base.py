"""The base class of views: datasets whose rows are made from those of other datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastio.errors import TransformError
from fastio.order.buckets import Buckets
from fastio.packed import Dataset
from fastio.packed.rows import Rows

if TYPE_CHECKING:
    from fastio.views.documents import Documents  # which imports subsets, and that this module

_MOST_TOKENS = 1 << 24


class View(Rows):
    """A dataset whose rows are made from those of other datasets.

    Attributes:
        dataset: what has the documents, as given or opened.
        field: name of the field of tokens.
        parts: views of one packed dataset each, whose rows follow one another; a view of one
            packed dataset has itself as its only part.
        picked: int64 (n,), the rows of `parts` that the view consists of; None for all.
    """

    dataset: Any
    field: str
    parts: Sequence[Any]
    _documents: Documents
    picked: npt.NDArray[np.int64] | None = None

    @property
    def packed(self) -> Dataset | None:
        """The packed dataset with the documents; None if there are several."""
        return self._documents.parts[0] if len(self._documents.parts) == 1 else None

    def close(self) -> None:
        """Closes the dataset if it was opened here, from a path or URL."""
        self._documents.close()

    # --- What a loader asks a view ----------------------------------------------------------------

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


def check_options(view: str, lengths: Mapping[str, object], dtype: str) -> None:
    """Raises TransformError unless the lengths and the dtype of a view's rows are possible."""
    for name, value in lengths.items():
        if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
            raise TransformError(f"{view}: {name} must be from 1 to {_MOST_TOKENS}, got {value!r}")
    if dtype not in ("int32", "int64"):
        raise TransformError(f"dtype must be 'int32' or 'int64', got {dtype!r}")


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
