"""Table files by row number, as other datasets are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.cores import available_cores
from fastio.dataset.rows import Rows
from fastio.formats.tables.direct import RowGroup, TableDataset
from fastio.formats.tables.options import TableOptions
from fastio.formats.tables.samples import listed, sample_value
from fastio.formats.tables.values import Ragged
from fastio.schema import Schema
from fastio.shown import without_secrets

_LEAST_GROUPS = 2  # row groups that are kept, as they were read last
_MOST_IN_MEMORY = 4 << 30  # bytes of files without row groups (CSV, JSONL, Arrow streams)

Values = NDArray[Any] | Ragged


class TableSamples(Rows):
    """The rows of table files as dicts. Safe to use from several threads.

    A row is had by reading its row group, of which the last ones are kept.

    Nothing is read before a row, the schema or the length is asked for.

    Args:
        make: opens the row groups: `TableDataset` of files, with these already given to it, or
            what has its other arguments.
        options: which columns, as which fields.
        filters: rows that are wanted, in pyarrow's form; None for all.
        memory: bytes, or as "512MiB", that a Loader of it may take; None: it decides.
        remote: whether the rows are in a store.

    Attributes:
        path: the first file's.
        schema: the fields.
        memory, remote: as given.

    Raises:
        SourceNotFound, ShardCorrupt, StoreError: a file cannot be read.
        SchemaError: a column cannot be a field, or a file needs more memory.
    """

    def __init__(
        self,
        make: Callable[..., TableDataset],
        options: TableOptions | None = None,
        filters: Any = None,
        memory: int | str | None = None,
        remote: bool = False,
    ) -> None:
        self._make = make
        self._options = options or TableOptions()
        self._filters = filters
        self.memory = memory
        self.remote = remote
        self._read: OrderedDict[int, Mapping[str, Values]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def row_groups(
        self, fields: Sequence[str] | None, memory: int, threads: int, keep_nulls: bool = False
    ) -> TableDataset:
        """The same rows as row groups, opened anew for a Loader.

        Args:
            fields: names of the fields that are wanted, in this order; None for all.
            memory: bytes that they may take.
            threads: for opening.
            keep_nulls: as `TableOptions` has it.

        Raises:
            As above.
        """
        options = replace(self._options, keep_nulls=keep_nulls)
        return self._make(
            options=options,
            fields=fields,
            filters=self._filters,
            memory=memory,
            threads=threads,
            like=self.__dict__.get("_dataset"),
        )

    @cached_property
    def _dataset(self) -> TableDataset:
        return self.row_groups(None, _MOST_IN_MEMORY, available_cores())

    @property
    def path(self) -> str:  # type: ignore[override]
        """What messages call it."""
        return self._dataset.path

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """The fields."""
        return self._dataset.schema

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        return np.array([group.first_row for group in self._dataset.groups], np.int64)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stand for the files, and which rows are wanted."""
        return self._dataset.fingerprint

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return f"TableSamples({without_secrets(self.path)!r}, rows={len(self)})"

    def gather(self, field: str, rows: NDArray[np.int64]) -> NDArray[Any] | list[Any]:
        """One field of many rows.

        Args:
            field: its name.
            rows: int64 (n,), row numbers in any order.

        Returns:
            An array of shape (n,) for Scalar and (n, *shape) for Array; a list of n str, bytes
            or arrays for Text, Bytes and Array of differing shapes.

        Raises:
            SchemaError: there is no such field, or a value cannot be held by its field.
            ShardCorrupt: a row group is damaged.
            IndexError: a row number is out of range.
        """
        return self.gather_all([field], rows)[field]

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """`gather` for several fields."""
        kinds = {name: self._field(name) for name in fields}
        rows = self._in_range(rows)
        number = np.searchsorted(self._first, rows, side="right") - 1
        found = {name: self._room(name, len(rows)) for name in fields}
        for group in np.unique(number).tolist():
            there = np.flatnonzero(number == group)
            local = rows[there] - self._first[group]
            read = self._group(group)
            for name, kind in kinds.items():
                values = read[name]
                if not isinstance(values, Ragged):
                    found[name][there] = values[local]
                    continue
                for place, row in zip(there.tolist(), local.tolist(), strict=True):
                    found[name][place] = listed(values.slice(row, row + 1), kind)[0]
        fixed = self._dataset.fixed
        return {n: values if n in fixed else list(values) for n, values in found.items()}

    def keep(self, nbytes: int) -> None:
        """Keeps row groups that were read in so many bytes, the two read last in any case."""
        self._kept_bytes = nbytes

    @property
    def group_bounds(self) -> NDArray[np.int64]:
        """The first row of each row group, and the number of rows: int64 (groups + 1,)."""
        return np.append(self._first, len(self))

    @property
    def group_bytes(self) -> int:
        """About the bytes of the largest row group in memory."""
        row = self._dataset.row_bytes
        return max((g.rows * row + g.varying_bytes for g in self._dataset.groups), default=0)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample.

        Args:
            index: row number; negative ones count from the end.

        Raises:
            IndexError: it is out of range.
            SchemaError: a value cannot be held by its field.
            ShardCorrupt: its row group is damaged.
        """
        row = self._row(index)
        at = np.array([row], np.int64)
        return {
            name: sample_value(self.gather(name, at)[0], kind)
            for name, kind in self.schema.fields.items()
        }

    def sample_name(self, row: int) -> str:
        """How messages name a row."""
        return f"{self.path} row {row}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def close(self) -> None:
        """Lets go of what is in memory."""
        with self._lock:
            self._read.clear()
        if "_dataset" in self.__dict__:
            self._dataset.close()

    def __reduce__(self) -> Any:
        given = self._make, self._options, self._filters, self.memory, self.remote
        return TableSamples, given

    def _group(self, number: int) -> Mapping[str, Values]:
        """All fields of a row group."""
        with self._lock:
            found = self._read.pop(number, None)
            if found is None:
                found = self._whole(self._dataset.groups[number])
            self._read[number] = found
            most = self._kept_bytes // max(1, self.group_bytes)
            if len(self._read) > max(_LEAST_GROUPS, most):
                self._read.popitem(last=False)
            return found

    def _room(self, field: str, rows: int) -> NDArray[Any]:
        """Memory for a field of so many rows."""
        fixed = self._dataset.fixed.get(field)
        if fixed is None:
            return np.empty(rows, object)
        return np.empty((rows, *fixed[0]), self.schema.fields[field].dtype)  # type: ignore[union-attr]

    def _whole(self, group: RowGroup) -> dict[str, Values]:
        kinds = self.schema.fields
        found: dict[str, Values] = {
            name: np.empty((group.rows, *shape), kinds[name].dtype)  # type: ignore[union-attr]
            for name, (shape, _) in self._dataset.fixed.items()
        }
        ragged: dict[str, list[Ragged]] = {name: [] for name in kinds if name not in found}
        for rows in self._dataset.read(group, None, True):
            for part in rows.parts:
                target = found[part.field]
                assert not isinstance(target, Ragged)
                target = target[rows.begin : rows.begin + rows.count]
                if target.shape != part.values.shape:
                    width = part.values.shape[1] if part.values.ndim > 1 else 1
                    target = target[:, part.first : part.first + width]
                target[...] = part.values.reshape(target.shape)
            for name, each in rows.ragged.items():
                ragged[name].append(each)
        return found | {name: Ragged.joined(parts) for name, parts in ragged.items()}
