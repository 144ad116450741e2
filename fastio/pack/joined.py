"""The concatenated rows of datasets with the same fields, or a selection of them, to be packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.packed.grouping import grouped, starts_of
from fastio.packed.rows import Rows


class JoinedRows:
    """The concatenated rows of datasets, or a selection of them.

    A *place* is a position in these rows, from 0.

    Args:
        parts: The datasets. They have the same fields, in the same order if samples are not dicts.
        picked: The selected rows in the order of their places, int64 (n,): row numbers in the
            concatenation of the datasets. If None, all rows.

    Attributes:
        parts: The datasets.
        schema: The schema of the first dataset.
        fingerprint: A string that changes when the datasets or the selection change.
    """

    def __init__(self, parts: Sequence[Rows], picked: NDArray[np.int64] | None = None) -> None:
        self.parts = tuple(parts)
        self.schema = parts[0].schema
        self._picked = picked
        self._starts = starts_of([len(part) for part in parts])
        stamps = [part.fingerprint for part in parts]
        if picked is not None:
            stamps.append(xxhash.xxh3_64_hexdigest(picked.tobytes()))
        self.fingerprint = " ".join(stamps)

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._picked is None else len(self._picked)

    def locate(self, place: int) -> tuple[Rows, int]:
        """Returns the dataset that has the row at a place, and the row's number in this dataset."""
        row = place if self._picked is None else int(self._picked[place])
        part = int(self._part_of(row)) if len(self.parts) > 1 else 0
        return self.parts[part], row - int(self._starts[part])

    def gather_all(
        self, fields: Sequence[str], places: NDArray[np.int64]
    ) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
        """Returns the values of fields of the rows at places, int64 (n,); see `Rows.gather_all`."""

        def gathered(part: Rows, rows: NDArray[np.int64]) -> Mapping[str, Any]:
            return part.gather_all(fields, rows)

        found = list(self._by_part(places, gathered))
        if len(found) == 1:
            return dict(found[0][1])
        return {
            field: _merged([(at, values[field]) for at, values in found], len(places))
            for field in fields
        }

    def by_row(
        self, places: NDArray[np.int64], read: Callable[[Rows, NDArray[np.int64]], list[Any]]
    ) -> list[Any]:
        """Returns the values that `read` returns for the rows at places, in their order.

        Args:
            places: int64 (n,).
            read: Called once for each dataset that has some of the rows, with the dataset and the
                numbers of these rows in it, int64 (m,). Returns m values.
        """
        return list(_merged(list(self._by_part(places, read)), len(places)))

    def _by_part(
        self, places: NDArray[np.int64], read: Callable[[Rows, NDArray[np.int64]], Any]
    ) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yields the positions in `places` of the rows of each dataset, and what `read` returns."""
        rows = places if self._picked is None else self._picked[places]
        if len(self.parts) == 1:  # grouping takes longer than reading
            yield np.arange(len(rows)), read(self.parts[0], rows)
            return
        for part, at in grouped(self._part_of(rows)):
            yield at, read(self.parts[part], rows[at] - self._starts[part])

    def _part_of(self, rows: Any) -> Any:
        """Returns the numbers of the datasets that have rows, given one row or int64 (n,)."""
        return np.searchsorted(self._starts, rows, side="right") - 1


def _merged(found: Sequence[tuple[NDArray[np.int64], Any]], count: int) -> Any:
    """Returns the values of all positions in one array, or a list if they cannot form an array.

    Args:
        found: Positions, int64 (m,), and their values, an array or a list.
        count: The number of positions.
    """
    if len(found) == 1:
        return found[0][1]
    first = found[0][1]
    arrays = all(
        isinstance(values, np.ndarray) and values.shape[1:] == first.shape[1:]
        for _, values in found
    )
    out: Any = np.empty((count, *first.shape[1:]), first.dtype) if arrays else [None] * count
    for at, values in found:
        if arrays:
            out[at] = values
        else:
            for position, value in zip(at.tolist(), values, strict=True):
                out[position] = value
    return out
