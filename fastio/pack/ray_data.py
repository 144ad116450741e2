"""A `ray.data.Dataset` as a table: its blocks stay where they are until their rows are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from fastio.errors import SchemaError
from fastio.sources.table.arrow import MemoryTable
from fastio.sources.table.reading import Batches


def is_ray_dataset(src: Any) -> bool:
    """Returns whether an object is a dataset of Ray Data."""
    return any(base.__module__.startswith("ray.data.") for base in type(src).__mro__)


def fastio_count_rows(table: pa.Table) -> tuple[int, pa.Schema]:
    """Returns the number of rows and the columns of a block. Ray's dashboard shows the name."""
    return table.num_rows, table.schema.remove_metadata()


class RayTable:
    """The blocks of a dataset of Ray Data, in order; see `Table`. Can be sent to Ray tasks.

    The dataset is executed, and its blocks stay in Ray's object store, which writes them to disks
    if they exceed its memory. Ray computes blocks again that are lost with a machine.

    Args:
        dataset: The dataset.

    Raises:
        SchemaError: Its blocks have different columns.
    """

    is_text = False

    def __init__(self, dataset: Any) -> None:
        import ray  # an optional package, which the dataset is of

        count: Any = ray.remote(fastio_count_rows)
        self.name = type(dataset).__name__
        refs = dataset.to_arrow_refs()
        found: list[tuple[int, pa.Schema]] = ray.get([count.remote(ref) for ref in refs])
        self._blocks = [(ref, rows) for ref, (rows, _) in zip(refs, found, strict=True) if rows]
        schemas = [schema for rows, schema in found if rows] or [pa.schema([])]
        self.schema: pa.Schema = schemas[0]
        for number, schema in enumerate(schemas):
            if schema != self.schema:
                raise SchemaError(
                    f"block {number} of the {self.name} has other columns than block 0: {schema} "
                    f"and {self.schema}; convert them to the same types first, with map_batches"
                )
        self.rows: int | None = sum(rows for _, rows in self._blocks)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """See `Table`."""
        import ray  # see above

        before = 0
        for ref, count in self._blocks:
            if start < before + count:
                table = MemoryTable(self.name, ray.get(ref))
                for origin, batch in table.batches(columns, types, max(start - before, 0), rows):
                    yield replace(origin, first_row=before + origin.first_row), batch
            before += count
