"""Table files as a dataset with access by row number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastio.errors import SampleError, SchemaError
from fastio.packed.grouping import grouped
from fastio.packed.rows import Rows
from fastio.runtime.cores import available_cores
from fastio.runtime.lifecycle import new_lock
from fastio.runtime.properties import cached_property
from fastio.schema import PICTURES, Schema
from fastio.sources.table.direct import RowGroup, TableDataset
from fastio.sources.table.options import TableOptions
from fastio.sources.table.values import Ragged, listed

_LEAST_GROUPS = 2  # row groups that are kept in memory, the most recently read ones
_MOST_IN_MEMORY = 4 << 30  # bytes of files without row groups (CSV, JSONL, Arrow streams)

Values = NDArray[Any] | Ragged


class TableSamples(Rows):
    """The rows of table files as dicts. Thread-safe.

    Reading a row reads its whole row group. The most recently read row groups are kept in memory.
    Files are opened when a row, the schema or the length is first asked for.

    Args:
        make: Opens the row groups: `TableDataset` with the files already bound, or a callable that
            takes its other arguments.
        options: Which columns are read, as which fields.
        filters: The filter on rows, in pyarrow's form. If None, all rows.
        memory: The memory that a Loader may use, in bytes or as text such as "512MiB". If None, the
            Loader decides.
        remote: Whether the files are in a store.

    Attributes:
        path: The path of the first file.
        schema: The schema of the fields.
        memory, remote: As given.

    Raises:
        SourceNotFound, ShardCorrupt, StoreError: If a file cannot be read.
        SchemaError: If a column cannot be a field, or if a file needs more memory.
    """

    row_grouping: Literal["possible", "always"] = "always"

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
        # By the first row of each row group that was read: the rows of it that have no bytes, and
        # why, by field.
        self._lacking: dict[int, dict[str, dict[int, str]]] = {}
        self._lock = new_lock()
        self._kept_open: TableDataset | None = None
        self._opening = new_lock()

    def row_groups(
        self, fields: Sequence[str] | None, memory: int, threads: int, keep_nulls: bool = False
    ) -> TableDataset | None:
        """Opens the same rows as row groups, for a Loader; see `Rows` and `TableDataset`."""
        return self._groups(fields, memory, threads, keep_nulls)

    def _groups(
        self, fields: Sequence[str] | None, memory: int, threads: int, keep_nulls: bool = False
    ) -> TableDataset:
        options = replace(self._options, keep_nulls=keep_nulls)
        return self._make(
            options=options,
            fields=fields,
            filters=self._filters,
            memory=memory,
            threads=threads,
            like=self._kept_open,
        )

    @property
    def _dataset(self) -> TableDataset:
        if self._kept_open is None:
            with self._opening:
                if self._kept_open is None:
                    self._kept_open = self._groups(None, _MOST_IN_MEMORY, available_cores())
        return self._kept_open

    @property
    def path(self) -> str:  # type: ignore[override]
        """The dataset's name in messages."""
        return self._dataset.path

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """The schema of the fields."""
        return self._dataset.schema

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """The number of the first row of each row group, int64 (row groups,)."""
        return np.array([group.first_row for group in self._dataset.groups], np.int64)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the files' contents and the filter."""
        return self._dataset.fingerprint

    def __len__(self) -> int:
        return len(self._dataset)

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """Reads several fields of many rows; see `gather`.

        Raises:
            SampleError: A row has a file without bytes.
        """
        kinds = self._not_images(fields)
        rows = self._in_range(rows)
        number = np.searchsorted(self._first, rows, side="right") - 1
        found = {name: self._room(name, len(rows)) for name in fields}
        for group, there in grouped(number):
            local = rows[there] - self._first[group]
            read = self._group(group)
            self._check_files(int(self._first[group]), kinds, local)
            for name, kind in kinds.items():
                values = read[name]
                if not isinstance(values, Ragged):
                    found[name][there] = values[local]
                    continue
                for place, row in zip(there.tolist(), local.tolist(), strict=True):
                    found[name][place] = listed(values.slice(row, row + 1), kind)[0]
        fixed = self._dataset.fixed
        return {n: values if n in fixed else list(values) for n, values in found.items()}

    def _check_files(self, first: int, fields: Collection[str], local: NDArray[np.int64]) -> None:
        """Raises SampleError for the first of some rows that has a file without bytes.

        Args:
            first: The first row of their row group.
            fields: The fields that are read.
            local: int64 (n,), the numbers of the rows in the row group.
        """
        for name, rows in self._lacking.get(first, {}).items():
            for row in local.tolist() if name in fields else ():
                if row in rows:
                    raise SampleError(
                        self.path, first + row, self.sample_name(first + row), rows[row]
                    )

    def keep(self, nbytes: int) -> None:
        """Sets the memory for row groups that were read. The last two are kept in any case."""
        self._kept_bytes = nbytes

    @property
    def group_bounds(self) -> NDArray[np.int64]:
        """The first row of each row group, and the number of rows: int64 (groups + 1,)."""
        return np.append(self._first, len(self))

    def sampling_rate(self, field: str) -> int | None:
        """See `Rows`."""
        return self._dataset.sampling_rates.get(field)

    @property
    def file_bounds(self) -> NDArray[np.int64]:
        """The first row of each file, and the number of rows: int64 (files + 1,)."""
        return self._dataset.file_bounds

    @cached_property  # each read of a single row needs this size of thousands of row groups
    def group_bytes(self) -> int:
        """The approximate size in memory of the largest row group, in bytes."""
        row = self._dataset.row_bytes
        return max((g.rows * row + g.varying_bytes for g in self._dataset.groups), default=0)

    def close(self) -> None:
        """Releases row groups in memory and open files."""
        with self._lock:
            self._read.clear()
        if self._kept_open is not None:
            self._kept_open.close()

    def __reduce__(self) -> Any:
        given = self._make, self._options, self._filters, self.memory, self.remote
        return TableSamples, given

    def _group(self, number: int) -> Mapping[str, Values]:
        """Returns all fields of a row group, from memory or from the file."""
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
        """Allocates an array for a field of `rows` rows."""
        fixed = self._dataset.fixed.get(field)
        if fixed is None:
            return np.empty(rows, object)
        return np.empty((rows, *fixed[0]), self.schema.fields[field].dtype)  # type: ignore[union-attr]

    def _whole(self, group: RowGroup) -> dict[str, Values]:
        kinds = self.schema.fields
        try:
            found: dict[str, Values] = {
                name: np.empty((group.rows, *shape), kinds[name].dtype)  # type: ignore[union-attr]
                for name, (shape, _) in self._dataset.fixed.items()
            }
        except (MemoryError, ValueError) as error:  # ValueError: beyond the address space
            raise SchemaError(
                f"{group.origin.file}: the {group.rows:,} rows of row group {group.number} need "
                f"{group.rows * self._dataset.row_bytes:,} bytes of memory, which cannot be "
                "allocated: write the file with fewer rows in a row group, or write it again"
            ) from error
        ragged: dict[str, list[Ragged]] = {
            name: []
            for name, kind in kinds.items()
            if name not in found and not isinstance(kind, PICTURES)
        }
        lacking: dict[str, dict[int, str]] = {}
        for rows in self._dataset.read(group, None, True, lacking):
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
        if lacking:
            self._lacking[group.first_row] = lacking
        return found | {name: Ragged.joined(parts) for name, parts in ragged.items()}
