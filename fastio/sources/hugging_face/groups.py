"""A dataset of the datasets package as row groups, for the tables' path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from fastio.runtime.threads import DaemonPool
from fastio.schema import is_fixed_width
from fastio.sources.hugging_face.table import HuggingFaceTable
from fastio.sources.table.columns import Conversion
from fastio.sources.table.direct import RowGroup, Rows, TableDataset
from fastio.sources.table.features import with_classes
from fastio.sources.table.filters import Filter
from fastio.sources.table.narrowing import narrowed, selected
from fastio.sources.table.options import TableOptions
from fastio.sources.table.place import Place
from fastio.sources.table.reading import reading


class HuggingFaceGroups(TableDataset):
    """A dataset without images as row groups: runs of its rows, with its indices applied.

    Args:
        table: the dataset.
        options: what is wanted of it.
        fields: names of the fields that are wanted, in this order; None for all.
        filters: rows that are wanted; None for all.
        memory, like: as `TableDataset` has them; without effect.
        threads: for counting the rows that are wanted.

    Attributes:
        path, schema, groups, fingerprint: as `TableDataset`.

    Raises:
        SchemaError: a column cannot be a field.
    """

    def __init__(
        self,
        table: HuggingFaceTable,
        options: TableOptions,
        *,
        fields: Sequence[str] | None = None,
        filters: Any = None,
        memory: int = 0,
        threads: int = 1,
        like: TableDataset | None = None,
    ) -> None:
        self.path = table.name
        self._table = table
        self._filter = Filter.of(filters, table.schema, table.name)
        about = f"{table.stamp} {self._filter}"
        self.fingerprint = xxhash.xxh3_64_hexdigest(about.encode("utf-8", "surrogateescape"))
        conversion = Conversion(table.schema, options, table.name)
        if fields is not None:
            options = narrowed(options, conversion.schema(), fields)
            conversion = Conversion(table.schema, options, table.name)
        self._conversion = conversion
        self.schema = with_classes(selected(conversion.schema(), fields), table.classes)
        self.groups = self._counted(threads)

    def read(self, group: RowGroup, rows: int | None, threads: bool) -> Iterator[Rows]:
        """See `TableDataset`."""
        done = 0
        for batch, place in self._kept(group.number, rows):
            parts, ragged = self._conversion.parts(batch, place)
            yield Rows(done, batch.num_rows, parts, ragged)
            done += batch.num_rows

    def ahead(self, group: RowGroup) -> bool:
        """Nothing is to be fetched."""
        return True

    def close(self) -> None:
        """Nothing is open."""

    def _kept(self, number: int, rows: int | None) -> Iterator[tuple[pa.RecordBatch, Place]]:
        """The rows of a group that pass the filter."""
        wanted, columns = self._filter, list(self._conversion.reads)
        if wanted is not None:
            columns = [*dict.fromkeys([*columns, *wanted.columns])]
        first = self._table.first_row(number)
        for batch in self._table.read(number, columns, rows, False):
            place = Place(self.path, first)
            first += batch.num_rows
            if wanted is not None:
                with reading(self.path):
                    batch, numbers = wanted.numbered(batch)
                numbers = numbers + place.first_row
                place = Place(self.path, int(numbers[0]) if len(numbers) else 0, None, numbers)
            if batch.num_rows:
                yield batch, place

    def _counted(self, threads: int) -> list[RowGroup]:
        kinds = self.schema.fields
        varying = sorted(
            {
                column
                for field, column in self._conversion.sources()
                if field in kinds and not is_fixed_width(kinds[field])
            }
        )
        groups = self._table.groups(varying)
        counts: Sequence[int] = [rows for rows, _ in groups]
        if self._filter is not None:
            with DaemonPool(threads, "fastio-table-groups") as pool:
                counts = list(pool.map(self._count_kept, range(len(groups))))
        found: list[RowGroup] = []
        first = 0
        for number, ((rows, nbytes), kept) in enumerate(zip(groups, counts, strict=True)):
            if kept:
                place = Place(self.path, self._table.first_row(number))
                share = nbytes * kept // rows
                found.append(RowGroup(0, number, first, kept, place, share))
                first += kept
        return found

    def _count_kept(self, number: int) -> int:
        assert self._filter is not None
        with reading(self.path):
            batches = self._table.read(number, list(self._filter.columns), None, False)
            return sum(self._filter.of_batch(batch).num_rows for batch in batches)
