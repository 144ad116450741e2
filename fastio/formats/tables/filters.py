"""Which rows of a table are wanted, as pyarrow's filters say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pa_parquet
from pyarrow.fs import LocalFileSystem

from fastio.errors import SchemaError


@dataclass(frozen=True)
class Filter:
    """A condition on rows.

    Attributes:
        condition: pyarrow's.
        columns: names of the table's columns that it is about, and perhaps others.
    """

    condition: Any
    columns: tuple[str, ...]

    @staticmethod
    def of(filters: Any, schema: pa.Schema, where: str) -> Filter | None:
        """A condition as users give it.

        Args:
            filters: an expression of pyarrow.dataset; or tuples (column, operator, value), as a
                list, all of which hold, or a list of such lists, one of which holds; or None.
            schema: of the table.
            where: its path, for messages.

        Raises:
            SchemaError: it is neither, or not about this table.
        """
        if filters is None:
            return None
        try:
            condition = pa_parquet.filters_to_expression(filters)
            empty = schema.empty_table().filter(condition)
        except (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(
                f"{where}: filters={filters!r} does not fit the table: {error}. It is a list of "
                "(column, operator, value), or an expression of pyarrow.dataset"
            ) from error
        # An expression does not tell its columns: those that its text has are enough.
        text = str(condition)
        return Filter(condition, tuple(name for name in empty.column_names if name in text))

    def __str__(self) -> str:
        return str(self.condition)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch for which it holds."""
        kept = pa.Table.from_batches([batch]).filter(self.condition).combine_chunks().to_batches()
        return kept[0] if kept else batch.slice(0, 0)

    def possible(self, path: str) -> set[int]:
        """The row groups of a Parquet file that may have such rows, by their statistics."""
        fragment = pa_dataset.ParquetFileFormat().make_fragment(path, LocalFileSystem())
        return {group.id for group in fragment.subset(filter=self.condition).row_groups}
