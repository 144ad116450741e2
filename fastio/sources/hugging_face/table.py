"""A dataset of the datasets package as a table, and the fields that its columns become."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from fastio.errors import SchemaError
from fastio.runtime.properties import cached_property
from fastio.schema import Field
from fastio.sources.hugging_face.plain import plain_batch, plain_schema
from fastio.sources.hugging_face.sources import Opened as OpenedDataset
from fastio.sources.hugging_face.sources import open_hugging_face
from fastio.sources.named_files import NamedFiles
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.features import (
    Feature,
    Picture,
    Plain,
    Unknown,
    class_names,
    leaf_features,
    pictures,
)
from fastio.sources.table.filters import Filter
from fastio.sources.table.leaves import field_name, leaves, nested_field
from fastio.sources.table.opening import Opened
from fastio.sources.table.options import TableOptions
from fastio.sources.table.reading import AtHand, Grouped, Origin, sliced
from fastio.store import absolute_path


class HuggingFaceTable(Grouped):
    """A dataset as a table (see `Table`) with row groups, of columns that fields are made of.

    Thread-safe.

    Args:
        source: a directory of `save_to_disk`, or a `datasets.Dataset`.
        options: only columns that are wanted must have known features.
        roots: folders, beside its own, that its files may lie in.

    Attributes:
        stamp: changes when the data do.
        stored: The data as they were opened.
        classes: names of classes, by the path of their column.
        named_files: the files that its paths may name.
        features: The features of the columns.
        schema: The columns; those of images have a type of no meaning.
        images: The path of every column of images or lists of images, by the name of its field.
        special: The fields of these, of lists of lists and of lists of strings, by their names.

    Raises:
        SourceNotFound, ShardCorrupt: as `open_hugging_face`.
        SchemaError: a wanted column has a feature that is not known.
    """

    has_groups = False
    lends = True
    classes: Mapping[tuple[str, ...], tuple[str, ...]]

    def __init__(
        self,
        source: Any,
        options: TableOptions | None = None,
        roots: Iterable[str | os.PathLike[str]] | None = None,
    ) -> None:
        source = absolute_path(source)
        self._given = source, options, roots
        opened = open_hugging_face(source)
        self.named_files = NamedFiles(opened.folder, roots)
        self.stored: OpenedDataset = opened
        self.name = opened.name
        self.stamp = opened.stamp
        self.rows = len(opened.rows)
        self.features = _known(opened, options or TableOptions())
        whole = plain_schema(opened.rows.schema, self.features)
        # The metadata is left out, because its features describe the columns before they were
        # converted.
        known = [each for each in whole if not isinstance(self.features[each.name], Unknown)]
        self.schema = pa.schema(known)
        self.classes = class_names(self.features)
        images = pictures(self.features)
        self.images = {field_name(path): path for path in images}
        self.special: dict[str, Field] = {name: images[at] for name, at in self.images.items()}
        for name, leaf in leaves(self.schema, self.name).items():
            nested = nested_field(leaf.type)
            if nested is not None:
                self.special[name] = nested

    def __reduce__(self) -> Any:
        return HuggingFaceTable, self._given

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Grouped`."""
        stored = self.stored.rows
        return [(len(run), stored.nbytes(run, varying)) for run in self._runs]

    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """See `Grouped`."""
        first = self._runs[number].start
        for batch in self.stored.rows.read(self._runs[number], columns):
            origin = Origin(self.name, first)
            whole = plain_batch(batch, self.features, origin, self.named_files)
            yield from sliced(whole, rows)
            first += batch.num_rows

    def take(self, columns: Sequence[str], rows: np.ndarray[Any, Any]) -> pa.RecordBatch:
        """Returns some columns of some rows, int64 (n,), in that order.

        Raises:
            IndexError: a row number is out of range.
            SchemaError: a value is not what the features tell.
        """
        batch = self.stored.rows.take(columns, rows)
        first = int(rows[0]) if len(rows) else 0
        return plain_batch(batch, self.features, Origin(self.name, first), self.named_files)

    def formatted(self, options: TableOptions) -> TableOptions:
        """Returns options with the dtypes that the dataset's format gives to columns of numbers."""
        found = leaves(self.schema, self.name).values()
        free = (leaf for leaf in found if leaf.name not in self.special)
        dtypes = {
            leaf.name: dtype
            for leaf in free
            if {leaf.name, leaf.spoken}.isdisjoint(options.dtypes)
            and (dtype := self.stored.format.dtype(leaf.type)) is not None
        }
        return replace(options, dtypes={**dtypes, **options.dtypes})

    @cached_property
    def _runs(self) -> list[range]:
        return self.stored.rows.groups()


def _known(opened: OpenedDataset, options: TableOptions) -> dict[str, Feature]:
    """Returns the features of all columns; SchemaError if a wanted one is not known."""
    found = {name: opened.features.get(name, Plain()) for name in opened.rows.schema.names}
    unknown, fields = set(), pictures(found)
    for path, feature, _ in leaf_features(found):
        if isinstance(feature, Unknown):
            unknown.add(path[0])
            if _is_wanted(path[0], options):
                raise SchemaError(
                    f"{opened.name}: column {path[0]!r} has the feature type {feature.type!r}, "
                    "which fastio does not support; leave it out by choosing other columns "
                    "(columns=..., --columns), or cast it to an Arrow type"
                )
        if isinstance(feature, Picture) and path not in fields and _is_named(path, options):
            raise SchemaError(
                f"{opened.name}: column {'.'.join(path)!r} contains images in lists of dicts or "
                "of lists, which fastio does not read: make it a list of images (dataset.map), or "
                "leave the column out by choosing other columns (columns=..., --columns)"
            )
    return {name: Unknown("") if name in unknown else feature for name, feature in found.items()}


def _is_wanted(name: str, options: TableOptions) -> bool:
    if options.columns is None:
        return True
    named = [*options.columns, *(n for members in options.groups.values() for n in members)]
    return any(n == name or n.startswith((f"{name}.", f"{name}_")) for n in named)


def _is_named(path: tuple[str, ...], options: TableOptions) -> bool:
    """Returns whether a column is wanted by its name or by that of a struct that it is in."""
    if options.columns is None:
        return True
    above = {field_name(path[:end]) for end in range(1, len(path) + 1)}
    return any(field_name([name]) in above for name in options.columns)


def open_groups(
    table: HuggingFaceTable,
    options: TableOptions,
    *,
    filters: Any = None,
    like: TableDataset | None = None,
    **settings: Any,
) -> TableDataset:
    """Returns the row groups of a dataset without images; see `TableDataset`."""
    wanted = Filter.of(filters, table.schema, table.name)
    opened = Opened((), [table], wanted, stamp=table.stamp)
    return TableDataset(opened, options, like=like, **settings)


def wants_rows(table: HuggingFaceTable, options: TableOptions) -> bool:
    """Returns whether fields are wanted that row groups do not have: images and nested lists."""
    wanted = options.columns
    return any(wanted is None or n in {field_name([w]) for w in wanted} for n in table.special)
