"""Datasets of the datasets package as a source: tables, or samples with images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastio.errors import PackError, SampleError, SchemaError
from fastio.pack.cells import Bad, Item, RowImage
from fastio.pack.spread import spread
from fastio.pack.tables import TableSource
from fastio.packed.of_sample import NOT_OF_SAMPLES
from fastio.schema import Image, Schema
from fastio.sources import HuggingFaceDataset
from fastio.sources.hugging_face import (
    HuggingFaceTable,
    has_transform,
    wants_rows,
)
from fastio.sources.table import Filter, Opened, TableOptions, joined
from fastio.sources.table.features import with_classes

_ROWS_AT_ONCE = 256
Roots = Sequence[str | os.PathLike[str]] | None


class HuggingFaceRows(TableSource):
    """A dataset without images: a row a sample, its class names in the schema.

    Args:
        table: the dataset.
        options: what is wanted of it.
        name: what the manifest says the dataset was made of.
        filters: rows that are wanted; None for all.
    """

    def __init__(
        self, table: HuggingFaceTable, options: TableOptions, name: str, filters: Any
    ) -> None:
        wanted = Filter.of(filters, table.schema, table.name)
        tables = joined(Opened((), [table], wanted), options)
        condition = "" if wanted is None else str(wanted)
        super().__init__(tables, options, name, filters=condition)
        self.schema: Schema = with_classes(tables.schema, table.classes)
        self._stamp = table.stamp

    def stamp(self) -> str:
        """What changes when the dataset does."""
        return self._stamp


class HuggingFaceSamples:
    """A dataset with images, or lists of lists: a sample each, images left where they lie.

    Args:
        dataset: to be packed.
        name: what the manifest says the dataset was made of.
    """

    def __init__(self, dataset: HuggingFaceDataset, name: str) -> None:
        self.has_keys = True
        self.name = name
        self.total: int | None = len(dataset)
        self.schema = dataset.schema
        self._dataset = dataset
        self._values = [
            field for field, kind in self.schema.fields.items() if not isinstance(kind, Image)
        ]

    def items(self, start: int) -> Iterator[Item | Bad]:
        """The samples from number `start` on."""
        total = len(self._dataset)
        for first in range(start, total, _ROWS_AT_ONCE):
            yield from self._items(range(first, min(first + _ROWS_AT_ONCE, total)))

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """Some of the samples."""
        return (item for row in spread(len(self._dataset), count) for item in self._items([row]))

    def _items(self, rows: Sequence[int]) -> list[Item | Bad]:
        try:
            columns = self._dataset.gather_all(self._values, np.array(rows, np.int64))
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:  # MemoryError and RecursionError are a sample's own too
            if len(rows) > 1:
                return [item for row in rows for item in self._items([row])]
            name = self._dataset.sample_name(rows[0])
            named = SampleError(self.name, rows[0], name, error)
            named.__cause__ = error
            return [Bad(rows[0], name, named, self._key(rows[0]))]
        return [self._item(row, place, columns) for place, row in enumerate(rows)]

    def _item(self, row: int, place: int, columns: dict[str, Any]) -> Item:
        values = [
            columns[name][place] if name in columns else RowImage(self._dataset, name, row)
            for name in self.schema.fields
        ]
        return Item(row, self._dataset.sample_name(row), values, self._key(row))

    def _key(self, row: int) -> str:
        """What identifies a sample: the state that the dataset is in, and its number."""
        return f"{self._dataset.stamp} {row}"


def open_dataset(
    src: Any,
    schema: Schema | None,
    options: TableOptions,
    filters: Any,
    roots: Roots = None,
) -> HuggingFaceRows | HuggingFaceSamples:
    """A dataset of the datasets package, or its directory, as a source.

    Args:
        src: the dataset.
        schema: None.
        options: what is wanted of it.
        filters: rows that are wanted; None for all.
        roots: folders, beside its own, that files which it names may lie in.

    Raises:
        PackError: it makes its samples by a function, or it has images and there are filters.
        SourceNotFound, ShardCorrupt, SchemaError: as `HuggingFaceDataset`.
    """
    if has_transform(src):
        raise PackError(
            "the dataset makes its samples by a function (set_transform), which is not packed: "
            "ds.with_format(None) is the dataset without it, and ds.map(function) one with its "
            "results"
        )
    if schema is not None:
        raise SchemaError(
            "the dataset's own features say what its fields are: say with columns, groups, dtypes "
            "and nulls what they are to be, instead of a schema"
        )
    table = HuggingFaceTable(src, options, roots)
    is_path = isinstance(src, (str, os.PathLike))
    name = os.path.basename(os.path.abspath(src)) if is_path else "Dataset"
    if not wants_rows(table, options):
        return HuggingFaceRows(table, options, name, filters)
    if filters is not None:
        raise PackError("filters are for tables, and the dataset has images: use its own filter()")
    return HuggingFaceSamples(HuggingFaceDataset(table, options), name)
