"""Packs tars, and data of the datasets package.

Images stay where they are until they are encoded; other fields are read for many rows at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastio.errors import PackError, SchemaError
from fastio.pack.items import Bad, ImageFile, Item, RowImage, Source, source_of_rows, unreadable
from fastio.pack.tables import RowSource, table_source
from fastio.packed.of_sample import NOT_OF_SAMPLES
from fastio.packed.reads import WHOLE_FILE
from fastio.schema import Image, Schema
from fastio.sources import HuggingFaceDataset, TarDataset
from fastio.sources.hugging_face.sources import has_transform
from fastio.sources.hugging_face.table import HuggingFaceTable, wants_rows
from fastio.sources.table.filters import Filter
from fastio.sources.table.opening import Opened
from fastio.sources.table.options import TableOptions

Roots = Sequence[str | os.PathLike[str]] | None


def dataset_source(
    dataset: TarDataset | HuggingFaceDataset,
    name: str,
    schema: Schema,
    key: Callable[[int], str],
    stamp: Callable[[str, int], tuple[str, int]],
) -> Source:
    """Returns the samples of an open dataset.

    Args:
        dataset, name, schema: The dataset, and the source's name and fields; see `Source`.
        key: Returns what identifies a row across runs.
        stamp: Returns what changes when an image of a row does, and the image's size in bytes.
    """
    others = [field for field, kind in schema.fields.items() if not isinstance(kind, Image)]

    def read(rows: Sequence[int]) -> list[Item | Bad]:
        try:
            return gathered(rows)
        except NOT_OF_SAMPLES:
            raise
        except Exception:  # MemoryError and RecursionError can be a sample's own too
            return [found for row in rows for found in alone(row)]

    def alone(row: int) -> list[Item | Bad]:
        try:
            return gathered([row])
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:
            return [unreadable(name, row, error, dataset.sample_name(row), key(row))]

    def gathered(rows: Sequence[int]) -> list[Item | Bad]:
        columns = dataset.gather_all(others, np.array(rows, np.int64))
        return [item(row, place, columns) for place, row in enumerate(rows)]

    def item(row: int, place: int, columns: dict[str, Any]) -> Item:
        values = [
            columns[field][place] if field in columns else RowImage(field, row, dataset.read, stamp)
            for field in schema.fields
        ]
        return Item(row, dataset.sample_name(row), values, key(row))

    return source_of_rows(name, schema, len(dataset), read)


def tar_source(tars: TarDataset, schema: Schema | None) -> Source:
    """Returns the samples of tars; raises SchemaError if `schema` has fields that they have not."""
    wanted = tars.schema if schema is None else schema
    for name, field in wanted.fields.items():
        found = tars.schema.fields.get(name)
        if found is None or isinstance(found, Image) != isinstance(field, Image):
            raise SchemaError(
                f"the schema has the field {name!r}, {field}, and {tars.path} "
                f"{'has none' if found is None else f'has {found}'}"
            )

    def key(row: int) -> str:
        # The tar in its present state, and the sample's key in it.
        at = tars.locate(np.array([row]))
        tar = tars.index.tars[int(tars.index.tar_numbers(at)[0])]
        return f"{os.path.basename(tar.name)} {tar.stamp} {tars.index.key(int(at[0]))}"

    def stamp(field: str, row: int) -> tuple[str, int]:
        extents = tars.extents(field, np.array([row]))
        length = int(extents.length[0])
        return f"{int(extents.offset[0])} {length}", length

    return dataset_source(tars, os.path.basename(os.path.normpath(tars.path)), wanted, key, stamp)


def hugging_face_source(
    src: Any, options: TableOptions, filters: Any, roots: Roots = None
) -> Source | RowSource:
    """Returns a dataset of the datasets package, or its directory, as a source.

    Args:
        src: The dataset or the directory.
        options: Which columns become which fields.
        filters: The rows to pack; None for all.
        roots: Folders, besides its own, in which the files that it names may lie.

    Raises:
        PackError: It makes its samples by a function, or it has images and there are filters.
        SourceNotFound, ShardCorrupt, SchemaError: As for `HuggingFaceDataset`.
    """
    if has_transform(src):
        raise PackError(
            "the dataset computes its samples with a function (set_transform), which cannot be "
            "packed: pack ds.with_format(None), without the function, or ds.map(function), "
            "with its results"
        )
    table = HuggingFaceTable(src, options, roots)
    is_path = isinstance(src, (str, os.PathLike))
    name = os.path.basename(os.path.abspath(src)) if is_path else "Dataset"
    if not wants_rows(table, options):
        found = Opened((), [table], Filter.of(filters, table.schema, table.name))
        return table_source(found, options, name, stamp=table.stamp)
    if filters is not None:
        raise PackError("filters cannot be used with a dataset that has images: use ds.filter()")
    dataset = HuggingFaceDataset(table, options)

    def stamp(field: str, row: int) -> tuple[str, int]:
        reads = dataset.image_reads(field, np.array([row]))
        if reads.length[0] == WHOLE_FILE:
            return ImageFile(reads.path(int(reads.file[0]))).stamp()
        return "", int(reads.length[0])

    return dataset_source(dataset, name, dataset.schema, lambda row: f"{table.stamp} {row}", stamp)
