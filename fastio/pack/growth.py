"""Appending to a dataset: what samples must have in common with those that are there.

Fields must be the same. Classes and vocabularies grow: new names follow those that are there, and
the numbers of the source are replaced by those of the dataset, before anything is encoded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import DatasetNotFound, PackError, SchemaError
from fastio.pack.images import CodebookChoice, codebook_hash
from fastio.pack.items import Item, Source
from fastio.pack.samples import SampleOptions
from fastio.pack.statistics import Moments
from fastio.pack.tables import RowSource
from fastio.packed import Dataset, Manifest
from fastio.schema import Schema
from fastio.sources.table.columns import Converted
from fastio.sources.table.reading import Place

Numbers = Mapping[str, NDArray[np.int64]]  # by field, the dataset's number for each of the source's


def open_base(dst: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Manifest:
    """Returns the newest manifest of a dataset to append to; PackError if there is none."""
    try:
        with Dataset(dst, storage_options) as dataset:
            return dataset.manifest
    except DatasetNotFound as error:
        raise PackError(f"there is no dataset to append to: {error}") from error


def options_of(base: Manifest, options: SampleOptions, codebook_given: bool) -> SampleOptions:
    """Returns the options for samples that are appended, with the codebook of the dataset.

    Raises:
        PackError: Another codebook was chosen.
    """
    choice = options.codebook
    if choice is None or base.codebook is None:
        return options
    own = CodebookChoice(str(base.packing.get("codebook")), base.codebook)
    if codebook_given and choice.data != base.codebook:
        raise PackError(
            f"{base.folder} has the codebook {codebook_hash(base.codebook)}, and a dataset has one "
            f"codebook only: leave out codebook (--codebook), which is {choice.identity}"
        )
    return replace(options, codebook=own)


def fitted(base: Manifest, source: Source | RowSource) -> Source | RowSource:
    """Returns a source with the dataset's numbers of classes and words.

    Raises:
        SchemaError: Its samples have other fields, or names for numbers that have none there.
        PackError: It was made by another tokenizer, or has other columns.
    """
    schema, numbers = _grown(base, source.schema, source.name)
    if isinstance(source, Source):
        return _fitted_samples(source, schema, numbers)
    made, makes = (each.get("tokens") or {} for each in (base.packing, source.identity))
    if made.get("tokenizer") != makes.get("tokenizer"):
        raise PackError(
            f"{base.folder} was made by the tokenizer {made.get('tokenizer')}, and {source.name} "
            f"would be by {makes.get('tokenizer')}: use the same"
        )
    columns = [(about["field"], about["column"]) for about in base.statistics]
    if columns != list(source.columns):
        raise PackError(
            f"{base.folder} has statistics of the columns {columns}, and {source.name} has "
            f"{list(source.columns)}: choose the same columns"
        )
    sums = [_moments(about) for about in base.statistics]
    return replace(_fitted_rows(source, schema, numbers), sums=sums)


def same_numbers(base: Manifest, schema: Schema) -> Schema:
    """Returns the schema of a dataset and of samples that have the dataset's numbers.

    Raises:
        SchemaError: The schema has other fields, or its names have other numbers.
    """
    grown, numbers = _grown(base, schema, "a schema")
    if numbers:
        raise SchemaError(
            f"the classes or vocabularies of the schema have other numbers in {base.folder}: let "
            "new names follow those of the dataset, or leave the classes out"
        )
    return grown


def _grown(base: Manifest, schema: Schema, name: str) -> tuple[Schema, Numbers]:
    """Returns the schema of both together, and the numbers of the names in it."""
    own = base.schema
    compared: tuple[tuple[str, Any, Any], ...] = (
        ("fields", list(own.fields.items()), list(schema.fields.items())),
        ("structure", own.structure, schema.structure),
        ("records", own.records, schema.records),
        ("fields with vocabularies", sorted(own.vocabularies), sorted(schema.vocabularies)),
    )
    for what, there, given in compared:
        if there != given:
            raise SchemaError(
                f"{name} cannot be appended to {base.folder}: its {what} are {_only(given, there)},"
                f" those of the dataset {_only(there, given)}"
            )
    numbers: dict[str, NDArray[np.int64]] = {}
    classes = own.classes
    if schema.classes is not None:
        if classes is None:
            raise SchemaError(
                f"{name} cannot be appended to {base.folder}: it has names of classes "
                f"({', '.join(schema.classes[:3])}, ...), and the classes of the dataset have none"
            )
        label = next((field for field in ("label", "class") if field in own.fields), "")
        classes, numbers[label] = _union(classes, schema.classes)
    words = {}
    for field, known in own.vocabularies.items():
        words[field], numbers[field] = _union(known, schema.vocabularies[field])
    changed = {
        field: each for field, each in numbers.items() if (each != np.arange(len(each))).any()
    }
    return replace(schema, classes=classes, vocabularies=words), changed


def _only(these: Any, those: Any) -> Any:
    """Returns what is not in both of two lists, in words; all of other values."""
    if not isinstance(these, list):
        return these
    return [each for each in these if each not in those] or these


def _union(there: Sequence[str], more: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Returns the names of both, and the numbers of the second's in them, int64 (n,)."""
    every = dict.fromkeys((*there, *more))
    number_of = {name: number for number, name in enumerate(every)}
    return tuple(every), np.array([number_of[name] for name in more], np.int64)


def _fitted_samples(source: Source, schema: Schema, numbers: Numbers) -> Source:
    place_of = {name: place for place, name in enumerate(schema.fields)}
    places = {place_of[field]: each for field, each in numbers.items()}

    def renumbered(items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            values = list(item.values)
            for place, known in places.items():
                if place < len(values) and 0 <= values[place] < len(known):
                    values[place] = int(known[values[place]])
            yield replace(item, values=values)

    if not numbers:
        return replace(source, schema=schema)
    return replace(
        source,
        schema=schema,
        items=lambda start: renumbered(source.items(start)),
        pick=lambda rows: renumbered(source.pick(rows)),
    )


def _fitted_rows(source: RowSource, schema: Schema, numbers: Numbers) -> RowSource:
    def convert(
        batch: pa.RecordBatch, place: Place, out: Mapping[str, NDArray[Any]] | None = None
    ) -> Converted:
        converted = source.convert(batch, place, out)
        columns = list(converted.columns)
        for field, known in numbers.items():
            values: Any = converted.fields[field]
            values[...] = known[values]
            for at, column in enumerate(columns):
                if column.field == field and isinstance(column.values, np.ndarray):
                    columns[at] = replace(column, values=known[column.values])
        return Converted(converted.fields, columns)

    return replace(source, schema=schema, convert=convert if numbers else source.convert)


def _moments(about: Mapping[str, Any]) -> Moments:
    """Returns a column's statistics from the form of manifests, in which null is not finite."""
    counts = about["count"], about["nulls"], about["nan"]
    if "min" not in about or not about["count"]:
        return Moments(*counts)
    low, high, mean, deviation = (
        math.nan if about[key] is None else about[key] for key in ("min", "max", "mean", "std")
    )
    return Moments(*counts, low, high, mean, deviation**2 * about["count"])
