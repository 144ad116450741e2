"""WebDataset tars as a source: samples in order, images left in the tars until they are encoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastio.errors import SampleError, SchemaError
from fastio.pack.cells import Bad, Item, TarImage
from fastio.pack.spread import spread
from fastio.packed.of_sample import NOT_OF_SAMPLES
from fastio.schema import Image, Schema
from fastio.sources import TarDataset

_ROWS_AT_ONCE = 256


class TarSource:
    """Tars: a sample each, whose fields are those of the dataset.

    Args:
        tars: the dataset.
        schema: the schema to use instead of the dataset's; its fields must be among those.

    Raises:
        SchemaError: they are not.
    """

    def __init__(self, tars: TarDataset, schema: Schema | None) -> None:
        self.has_keys = True
        self.name = os.path.basename(os.path.normpath(tars.path))
        self.total: int | None = len(tars)
        self.schema = tars.schema if schema is None else schema
        for name, field in self.schema.fields.items():
            found = tars.schema.fields.get(name)
            if found is None or isinstance(found, Image) != isinstance(field, Image):
                raise SchemaError(
                    f"the schema has the field {name!r}, {field}, and {tars.path} "
                    f"{'has none' if found is None else f'has {found}'}"
                )
        self._tars = tars
        self._values = [
            name for name, field in self.schema.fields.items() if not isinstance(field, Image)
        ]

    def items(self, start: int) -> Iterator[Item | Bad]:
        """The samples from number `start` on."""
        total = len(self._tars)
        for first in range(start, total, _ROWS_AT_ONCE):
            yield from self._items(range(first, min(first + _ROWS_AT_ONCE, total)))

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """Some of the samples."""
        return (item for row in spread(len(self._tars), count) for item in self._items([row]))

    def _items(self, rows: Sequence[int]) -> list[Item | Bad]:
        try:
            columns = self._tars.gather_all(self._values, np.array(rows, np.int64))
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:  # MemoryError and RecursionError are a sample's own too
            if len(rows) > 1:
                return [item for row in rows for item in self._items([row])]
            name = self._tars.sample_name(rows[0])
            cause = error.cause if isinstance(error, SampleError) else error
            named = SampleError(self.name, rows[0], name, cause)
            named.__cause__ = error
            return [Bad(rows[0], name, named, self._key(rows[0]))]
        return [self._item(row, place, columns) for place, row in enumerate(rows)]

    def _item(self, row: int, place: int, columns: dict[str, Any]) -> Item:
        values = [
            columns[name][place] if name in columns else TarImage(self._tars, name, row)
            for name in self.schema.fields
        ]
        return Item(row, self._tars.sample_name(row), values, self._key(row))

    def _key(self, row: int) -> str:
        """What identifies a sample: its tar in the state that it is in, and its key there."""
        at = self._tars.locate(np.array([row]))
        tar = self._tars.index.tars[int(self._tars.index.tar_numbers(at)[0])]
        return f"{os.path.basename(tar.name)} {tar.stamp} {self._tars.index.key(int(at[0]))}"
