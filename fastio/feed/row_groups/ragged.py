"""Variable-width fields in shuffled batches: numeric lists are batched, strings become lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.engine.ragged import Form, Forms, RaggedBatch, scatter
from fastio.errors import ShardCorrupt
from fastio.schema import Array, Field, Text
from fastio.sources.table.values import Ragged

_Run = tuple[int, dict[str, Ragged]]  # number of the first row; the rows of each field


class RaggedRuns:
    """The rows of variable-width fields, as runs of consecutive rows. Thread-safe.

    Args:
        fields: The variable-width fields.
        forms: The form of each field of lists in batches; "padded" by default.
    """

    def __init__(self, fields: dict[str, Field], forms: Forms | None = None) -> None:
        self._fields = fields
        self._forms = forms or Forms()
        # By the first row's number. Replaced and never changed, because threads make batches of the
        # runs that are there while others add more.
        self._runs: tuple[_Run, ...] = ()

    def add(self, first: int, rows: dict[str, Ragged]) -> None:
        """Adds consecutive rows, of which the first has the number `first`.

        Only one thread may add at a time; others may call `batch` meanwhile.
        """
        kept = {name: rows[name] for name in self._fields}
        self._runs = _in_order((*self._runs, (first, kept)))

    def merged(self, other: RaggedRuns) -> RaggedRuns:
        """Returns the rows of both objects together."""
        both = RaggedRuns(self._fields, self._forms)
        both._runs = _in_order((*self._runs, *other._runs))
        return both

    def batch(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Returns the fields of a batch.

        Args:
            rows: int64 (n,), numbers of rows that were added.

        Returns:
            A list of str or bytes, or a `RaggedBatch` for lists.
        """
        added = self._runs
        firsts = np.array([first for first, _ in added], np.int64)
        runs = np.searchsorted(firsts, rows, side="right") - 1
        found: dict[str, Any] = {}
        for name, kind in self._fields.items():
            parts = [
                (np.flatnonzero(runs == run), added[run][1][name], int(firsts[run]))
                for run in np.unique(runs).tolist()
            ]
            if isinstance(kind, Array):
                found[name] = _lists(parts, rows, kind.dtype, self._forms.get(name, "padded"))
            else:
                found[name] = _strings(parts, rows, isinstance(kind, Text))
        return found


def _in_order(runs: Iterable[_Run]) -> tuple[_Run, ...]:
    return tuple(sorted(runs, key=lambda run: run[0]))


_Parts = Sequence[tuple[npt.NDArray[np.int64], Ragged, int]]  # places in the batch; run; its start


def _lists(parts: _Parts, rows: npt.NDArray[np.int64], dtype: str, form: Form) -> RaggedBatch:
    lengths = np.zeros(len(rows), np.int64)
    for at, ragged, first in parts:
        local = rows[at] - first
        lengths[at] = ragged.offsets[local + 1] - ragged.offsets[local]
    into = scatter(form, lengths[:, None])
    flat = (np.zeros if form == "padded" else np.empty)(into.shape, dtype).reshape(-1)
    for at, ragged, first in parts:
        counts = lengths[at]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = ragged.offsets[rows[at] - first]
        targets = np.repeat(into.target[at], counts) + within
        flat[targets] = ragged.values[np.repeat(begins, counts) + within]
    return RaggedBatch(form, flat.reshape(into.shape), lengths[:, None])


def _strings(parts: _Parts, rows: npt.NDArray[np.int64], is_text: bool) -> list[Any]:
    found: list[Any] = [None] * len(rows)
    for at, ragged, first in parts:
        data = np.ascontiguousarray(ragged.values).data
        local = rows[at] - first
        begins, ends = ragged.offsets[local].tolist(), ragged.offsets[local + 1].tolist()
        for place, begin, end in zip(at.tolist(), begins, ends, strict=True):
            value = bytes(data[begin:end])
            found[place] = _decoded(value, int(rows[place])) if is_text else value
    return found


def _decoded(value: bytes, row: int) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:  # it was UTF-8 when it was checked
        raise ShardCorrupt(
            f"row {row}: its text was changed while it was being read ({error}); do not write to "
            "files that are being read"
        ) from error
