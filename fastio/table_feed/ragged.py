"""Fields without a fixed width in shuffled batches: lists padded, strings as lists."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.formats.tables import Ragged
from fastio.schema import Array, Field, Text

LENGTH_SUFFIX = "_length"


class RaggedRows:
    """The rows of some fields, run by run of consecutive rows. Thread-safe.

    Args:
        fields: that have no fixed width.
    """

    def __init__(self, fields: dict[str, Field]) -> None:
        self._fields = fields
        self._runs: list[tuple[int, dict[str, Ragged]]] = []  # by the first row's number

    def add(self, first: int, rows: dict[str, Ragged]) -> None:
        """Takes rows in whose numbers are `first` and those that follow it."""
        kept = {name: rows[name] for name in self._fields}
        bisect.insort(self._runs, (first, kept), key=lambda run: run[0])

    def merged(self, other: RaggedRows) -> RaggedRows:
        """The rows of both."""
        both = RaggedRows(self._fields)
        both._runs = sorted([*self._runs, *other._runs], key=lambda run: run[0])
        return both

    def batch(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """A batch of the fields.

        Args:
            rows: int64 (n,), numbers of rows that were added.

        Returns:
            Lists of str or bytes; arrays (n, longest) filled up with zeros, and for each int64
            (n,) NAME_length.
        """
        firsts = np.array([first for first, _ in self._runs], np.int64)
        runs = np.searchsorted(firsts, rows, side="right") - 1
        found: dict[str, Any] = {}
        for name, kind in self._fields.items():
            parts = [
                (np.flatnonzero(runs == run), self._runs[run][1][name], int(firsts[run]))
                for run in np.unique(runs).tolist()
            ]
            if isinstance(kind, Array):
                found[name], found[name + LENGTH_SUFFIX] = _padded(parts, rows, kind.dtype)
            else:
                found[name] = _strings(parts, rows, isinstance(kind, Text))
        return found


_Parts = Sequence[tuple[npt.NDArray[np.int64], Ragged, int]]  # places in the batch, rows, the first


def _padded(
    parts: _Parts, rows: npt.NDArray[np.int64], dtype: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    lengths = np.zeros(len(rows), np.int64)
    for places, ragged, first in parts:
        local = rows[places] - first
        lengths[places] = ragged.offsets[local + 1] - ragged.offsets[local]
    out = np.zeros((len(rows), int(lengths.max(initial=0))), dtype)
    flat = out.reshape(-1)
    for places, ragged, first in parts:
        counts = lengths[places]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = ragged.offsets[rows[places] - first]
        targets = np.repeat(places * out.shape[1], counts) + within
        flat[targets] = ragged.values[np.repeat(begins, counts) + within]
    return out, lengths


def _strings(parts: _Parts, rows: npt.NDArray[np.int64], is_text: bool) -> list[Any]:
    found: list[Any] = [None] * len(rows)
    for places, ragged, first in parts:
        data = np.ascontiguousarray(ragged.values).data
        local = rows[places] - first
        begins, ends = ragged.offsets[local].tolist(), ragged.offsets[local + 1].tolist()
        for place, begin, end in zip(places.tolist(), begins, ends, strict=True):
            value = bytes(data[begin:end])
            found[place] = value.decode() if is_text else value
    return found
