"""Opens datasets of the datasets package as a source: as tables, or as samples with images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastio.errors import PackError, SchemaError
from fastio.pack.datasets import DatasetSource, hugging_face_source
from fastio.pack.tables import TableSource
from fastio.schema import Schema
from fastio.sources import HuggingFaceDataset
from fastio.sources.hugging_face import (
    HuggingFaceTable,
    has_transform,
    wants_rows,
)
from fastio.sources.table import Filter, Opened, TableOptions, joined
from fastio.sources.table.features import with_classes

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


def open_dataset(
    src: Any,
    schema: Schema | None,
    options: TableOptions,
    filters: Any,
    roots: Roots = None,
) -> HuggingFaceRows | DatasetSource:
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
    return hugging_face_source(HuggingFaceDataset(table, options), name)
