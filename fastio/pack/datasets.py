"""Packs datasets that keep images as files: tars, and data of the datasets package.

Images stay where they lie until they are encoded; other fields are read for many rows at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastio.errors import SampleError, SchemaError
from fastio.pack.cells import Bad, ImageFile, Item, RowImage
from fastio.pack.spread import spread
from fastio.packed.of_sample import NOT_OF_SAMPLES
from fastio.packed.reads import WHOLE_FILE
from fastio.schema import Image, Schema
from fastio.sources import HuggingFaceDataset, TarDataset

_ROWS_AT_ONCE = 256


class DatasetSource:
    """The samples of an open dataset; see `sources.Source`.

    Args:
        dataset: The dataset.
        name: What the manifest says the packed dataset was made of.
        schema: The fields to pack, all of which the dataset has.
        key: Returns what identifies a row across runs.
        stamp: Returns what changes when an image of a row does, and the image's size in bytes.
    """

    def __init__(
        self,
        dataset: TarDataset | HuggingFaceDataset,
        name: str,
        schema: Schema,
        key: Callable[[int], str],
        stamp: Callable[[str, int], tuple[str, int]],
    ) -> None:
        self.has_keys = True
        self.name = name
        self.total: int | None = len(dataset)
        self.schema = schema
        self._dataset = dataset
        self._key = key
        self._stamp = stamp
        self._values = [
            field for field, kind in schema.fields.items() if not isinstance(kind, Image)
        ]

    def items(self, start: int) -> Iterator[Item | Bad]:
        """See `sources.Source`."""
        total = len(self._dataset)
        for first in range(start, total, _ROWS_AT_ONCE):
            yield from self._items(range(first, min(first + _ROWS_AT_ONCE, total)))

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """See `sources.Source`."""
        return (item for row in spread(len(self._dataset), count) for item in self._items([row]))

    def _items(self, rows: Sequence[int]) -> list[Item | Bad]:
        try:
            columns = self._dataset.gather_all(self._values, np.array(rows, np.int64))
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:  # MemoryError and RecursionError can be a sample's own too
            if len(rows) > 1:
                return [item for row in rows for item in self._items([row])]
            name = self._dataset.sample_name(rows[0])
            cause = error.cause if isinstance(error, SampleError) else error
            named = SampleError(self.name, rows[0], name, cause)
            named.__cause__ = error
            return [Bad(rows[0], name, named, self._key(rows[0]))]
        return [self._item(row, place, columns) for place, row in enumerate(rows)]

    def _item(self, row: int, place: int, columns: dict[str, Any]) -> Item:
        values = [
            columns[name][place]
            if name in columns
            else RowImage(self._dataset, name, row, self._stamp)
            for name in self.schema.fields
        ]
        return Item(row, self._dataset.sample_name(row), values, self._key(row))


def tar_source(tars: TarDataset, schema: Schema | None) -> DatasetSource:
    """Returns the samples of tars.

    Args:
        tars: The dataset.
        schema: The schema to use instead of the dataset's; its fields must be among those.

    Raises:
        SchemaError: They are not.
    """
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

    return DatasetSource(tars, os.path.basename(os.path.normpath(tars.path)), wanted, key, stamp)


def hugging_face_source(dataset: HuggingFaceDataset, name: str) -> DatasetSource:
    """Returns the samples of a dataset with images, or with lists of lists.

    Args:
        dataset: The dataset.
        name: What the manifest says the packed dataset was made of.
    """

    def stamp(field: str, row: int) -> tuple[str, int]:
        reads = dataset.image_reads(field, np.array([row]))
        if reads.length[0] == WHOLE_FILE:
            return ImageFile(reads.path(int(reads.file[0]))).stamp()
        return "", int(reads.length[0])

    return DatasetSource(dataset, name, dataset.schema, lambda row: f"{dataset.stamp} {row}", stamp)
