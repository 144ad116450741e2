"""Which rows of a table are wanted, as pyarrow's filters say it.

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
        condition: pyarrow's.
        columns: names of the table's columns that it is about; of one at least, to count rows.
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
        """Whether it is about a column of a table that it fits."""
        try:
            schema.remove(schema.get_field_index(name)).empty_table().filter(self.condition)
        except pa.ArrowException:
            return True
        return False

    def check(self, schema: pa.Schema, where: str, filters: Any = None) -> None:
        """Refuses a table that it is not about.

        Args:
            schema: of the table.
            where: its path.
            filters: as the user gave it.

        Raises:
            SchemaError: a column is not there, or of another type.
        """
        try:
            schema.empty_table().filter(self.condition)
        except (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unfitting(str(self) if filters is None else filters, where, error) from error

    def __str__(self) -> str:
        return str(self.condition)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch for which it holds."""
        kept = pa.Table.from_batches([batch]).filter(self.condition).combine_chunks().to_batches()
        return kept[0] if kept else batch.slice(0, 0)

    def numbered(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """As `of_batch`, and which rows those are, counted from 0."""
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
        """The row groups of a Parquet file that may have such rows, by their statistics.

        Args:
            metadata: the file's footer.
            schema: of its columns and those that its folders are.
            constants: what its folders say.
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
        """The numbers of the files that may have such rows, by what their folders say."""
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
