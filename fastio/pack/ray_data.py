"""A `ray.data.Dataset` as a table: its blocks stay where they are until their rows are packed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from fastio.errors import PackError, SchemaError
from fastio.sources.table.arrow import MemoryTable
from fastio.sources.table.reading import (
    Batches,
    Columns,
    Place,
    Spans,
    Table,
    first_rows,
    rows_within,
)


def is_ray_dataset(src: Any) -> bool:
    """Returns whether an object is a dataset of Ray Data."""
    return any(base.__module__.startswith("ray.data.") for base in type(src).__mro__)


def fastio_count_rows(table: pa.Table) -> tuple[int, int, pa.Schema]:
    """Returns rows, bytes and columns of a block. Ray's dashboard shows the name."""
    return table.num_rows, table.nbytes, table.schema.remove_metadata()


class RayTable(Table):
    """The blocks of a dataset of Ray Data, in order; see `Table`. Can be sent to Ray tasks.

    The dataset is executed, and its blocks stay in Ray's object store, which writes them to disks
    if they exceed its memory. Ray computes blocks again that are lost with a machine.

    Args:
        dataset: The dataset.

    Raises:
        PackError: It has no rows.
        SchemaError: Its blocks have different columns.
    """

    def __init__(self, dataset: Any) -> None:
        import ray  # an optional package, which the dataset is of

        count: Any = ray.remote(fastio_count_rows)
        self.name = type(dataset).__name__
        refs = dataset.to_arrow_refs()
        # Rows are counted in tasks, so that blocks are not sent to this machine.
        found: list[tuple[int, int, pa.Schema]] = ray.get([count.remote(ref) for ref in refs])
        filled = [(ref, *about) for ref, about in zip(refs, found, strict=True) if about[0]]
        if not filled:
            raise PackError(f"there is nothing to pack: {self.name} has no rows")
        self._blocks = [(ref, rows) for ref, rows, _, _ in filled]
        self._sizes = [nbytes for _, _, nbytes, _ in filled]
        schemas = [schema for _, _, _, schema in filled]
        self.schema = schemas[0]
        for number, schema in enumerate(schemas):
            if schema != self.schema:
                raise SchemaError(
                    f"block {number} of the {self.name} has other columns than block 0: {schema} "
                    f"and {self.schema}; convert them to the same types first, with map_batches"
                )
        self.rows = sum(rows for _, rows in self._blocks)

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`."""
        import ray  # see above

        before = 0
        for ref, count in self._blocks:
            if start < before + count:
                table = MemoryTable(self.name, ray.get(ref))
                for origin, batch in table.batches(columns, max(start - before, 0), rows):
                    yield replace(origin, first_row=before + origin.first_row), batch
            before += count

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`. Each block is a part."""
        places = [(n, n + 1, max(nbytes, 1)) for n, nbytes in enumerate(self._sizes)]
        return Spans(np.array(places, np.int64).reshape(-1, 3))

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """See `Table`."""
        begin, _, nbytes = place
        first = sum(count for _, count in self._blocks[:begin])
        count = rows_within(self._blocks[begin][1], nbytes, most)
        return first_rows(self.batches(columns, first, rows), count)
