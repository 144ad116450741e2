"""Rows of one or more datasets with the same fields, in the order in which they are packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.packed.rows import Rows


class JoinedRows:
    """Rows of datasets that follow one another.

    Args:
        parts: The datasets, which have the same fields. Unless samples are dicts, the fields have
            the same order.
        picked: The rows, int64 (n,): numbers of rows of all datasets, one after the other. If None,
            all.

    Attributes:
        parts: The datasets.
        schema: The schema of the first.
        fingerprint: A text that changes when the rows do.
    """

    def __init__(self, parts: Sequence[Rows], picked: NDArray[np.int64] | None = None) -> None:
        self.parts = tuple(parts)
        self.schema = parts[0].schema
        self._picked = picked
        self._ends = np.cumsum([len(part) for part in parts])
        stamps = [part.fingerprint for part in parts]
        if picked is not None:
            stamps.append(xxhash.xxh3_64_hexdigest(picked.tobytes()))
        self.fingerprint = " ".join(stamps)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._picked is None else len(self._picked)

    def locate(self, place: int) -> tuple[Rows, int]:
        """Returns the dataset that has the row at a place, and its number there."""
        row = place if self._picked is None else int(self._picked[place])
        part = int(np.searchsorted(self._ends, row, side="right"))
        return self.parts[part], row - (int(self._ends[part - 1]) if part else 0)

    def gather_all(
        self, fields: Sequence[str], places: NDArray[np.int64]
    ) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
        """Returns several fields of the rows at places, int64 (n,), as `Rows.gather_all` does."""

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
        """Returns what `read` returns for rows of each dataset, in the order of places, int64 (n,).

        Args:
            places: The places.
            read: Called with a dataset and row numbers, int64 (m,); returns m values.
        """
        return list(_merged(list(self._by_part(places, read)), len(places)))

    def _by_part(
        self, places: NDArray[np.int64], read: Callable[[Rows, NDArray[np.int64]], Any]
    ) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yields positions in `places`, and what `read` returns for the rows there."""
        rows = places if self._picked is None else self._picked[places]
        if len(self.parts) == 1:
            yield np.arange(len(rows)), read(self.parts[0], rows)
            return
        parts = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(parts).tolist():
            at = np.flatnonzero(parts == number)
            first = int(self._ends[number - 1]) if number else 0
            yield at, read(self.parts[number], rows[at] - first)


def _merged(found: Sequence[tuple[NDArray[np.int64], Any]], count: int) -> Any:
    """Returns the values of several datasets, arrays or lists, in the order of their positions."""
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
