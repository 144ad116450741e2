"""Filters on the rows of a table, in pyarrow's form.

pyarrow.dataset is imported where it is used: it imports pandas, and `import fastio` would take
nearly twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray
from pyarrow.fs import LocalFileSystem

from fastio.errors import SchemaError
from fastio.sources.table.partitions import Constants

_NUMBER = "\0row"  # no file has a column of this name


@dataclass(frozen=True)
class Filter:
    """A condition on rows.

    Attributes:
        condition: The condition, an expression of pyarrow.
        columns: The names of the columns that it uses; at least one, which counts the rows.
    """

    condition: Any
    columns: tuple[str, ...]

    @staticmethod
    def of(filters: Any, schema: pa.Schema, where: str) -> Filter | None:
        """Creates a filter from a user's argument.

        Args:
            filters: An expression of pyarrow.dataset; or a list of tuples (column, operator,
                value), all of which must hold; or a list of such lists, one of which must hold; or
                None.
            schema: The schema of the table.
            where: The table's path, for messages.

        Raises:
            SchemaError: If it has another form, or does not fit the table.
        """
        if filters is None:
            return None
        try:
            condition = pa_parquet.filters_to_expression(filters)
        except (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unfitting(filters, where, error) from error
        whole = Filter(condition, tuple(schema.names))
        whole.check(schema, where, filters)
        # An expression does not tell its columns: those without which it does not work.
        text = str(condition)
        likely = [name for name in schema.names if name in text]
        needed = [name for name in likely if whole.needs(name, schema)]
        return Filter(condition, tuple(needed or schema.names[:1]))

    def needs(self, name: str, schema: pa.Schema) -> bool:
        """Returns whether the condition uses a column of a table that it fits."""
        try:
            schema.remove(schema.get_field_index(name)).empty_table().filter(self.condition)
        except pa.ArrowException:
            return True
        return False

    def check(self, schema: pa.Schema, where: str, filters: Any = None) -> None:
        """Checks that the filter fits a table.

        Args:
            schema: The schema of the table.
            where: The table's path.
            filters: The filter as the user gave it, for messages.

        Raises:
            SchemaError: If a column is missing, or has another type.
        """
        try:
            schema.empty_table().filter(self.condition)
        except (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unfitting(str(self) if filters is None else filters, where, error) from error

    def __str__(self) -> str:
        return str(self.condition)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch that match."""
        kept = pa.Table.from_batches([batch]).filter(self.condition).combine_chunks().to_batches()
        return kept[0] if kept else batch.slice(0, 0)

    def numbered(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Returns the rows of a batch that match, and their numbers in the batch."""
        numbers = pa.array(np.arange(batch.num_rows, dtype=np.int64))
        arrays = [*batch.columns, numbers]
        named = pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, _NUMBER])
        kept = self.of_batch(named)
        return kept.select(batch.schema.names), kept.column(_NUMBER).to_numpy()

    def possible(
        self,
        metadata: pa_parquet.FileMetaData,
        schema: pa.Schema,
        constants: Constants | None = None,
    ) -> set[int]:
        """Returns the row groups of a file that may have matching rows, by their statistics.

        Args:
            metadata: The file's footer.
            schema: The schema of the file, with partition columns.
            constants: The partition columns, if there are any.
        """
        import pyarrow.dataset as pa_dataset

        footer = pa.BufferOutputStream()
        metadata.write_metadata_file(footer)
        known = None if constants is None else constants.expression()
        fragment = pa_dataset.ParquetFileFormat().make_fragment(
            pa.BufferReader(footer.getvalue()), partition_expression=known
        )
        found = fragment.subset(filter=self.condition, schema=schema)
        return {group.id for group in found.row_groups}

    def among(self, files: Sequence[Constants | None], schema: pa.Schema) -> list[int]:
        """Returns the numbers of the files that may have matching rows, by partition columns."""
        if None in files:
            return list(range(len(files)))
        import pyarrow.dataset as pa_dataset

        dataset = pa_dataset.FileSystemDataset.from_paths(
            [str(number) for number in range(len(files))],
            schema=schema,
            format=pa_dataset.ParquetFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=[constants.expression() for constants in files if constants is not None],
        )
        return sorted(int(each.path) for each in dataset.get_fragments(filter=self.condition))


def _unfitting(filters: Any, where: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"{where}: filters={filters!r} does not fit the table: {error}. It is a list of "
        "(column, operator, value), or an expression of pyarrow.dataset"
    )
