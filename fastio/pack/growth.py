"""Gives the classes and words of a source the numbers of the dataset that it is appended to.

Fields must be the same. Classes and vocabularies can grow: new names follow the existing ones.
Before samples are encoded, the numbers that the source gives to names are replaced by those of the
dataset.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import DatasetNotFound, PackError, SchemaError
from fastio.pack.images import CodebookChoice, codebook_hash
from fastio.pack.items import Item, Source
from fastio.pack.row_sources import RowSource
from fastio.pack.samples import SampleOptions
from fastio.pack.statistics import Moments
from fastio.pack.tables import check_numbers
from fastio.packed import Manifest
from fastio.packed.stored import newest_manifest
from fastio.schema import Schema
from fastio.sources.table.columns import Converted
from fastio.sources.table.reading import Origin

# For each field, an array that maps the source's numbers to those of the dataset.
Numbers = Mapping[str, NDArray[np.int64]]


def open_base(dst: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Manifest:
    """Returns the newest manifest of a dataset to append to; PackError if there is none."""
    try:
        return newest_manifest(dst, storage_options)
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
            f"codebook is {choice.identity}, but {base.folder} has the codebook "
            f"{codebook_hash(base.codebook)}, and a dataset can have only one: leave out codebook "
            "(--codebook) to use that of the dataset"
        )
    return replace(options, codebook=own)


def with_numbers_of(base: Manifest, source: Source | RowSource) -> Source | RowSource:
    """Returns a source whose classes and words have the numbers of the dataset.

    Raises:
        SchemaError: Its samples have other fields, or it has named classes and the dataset's
            classes have no names.
        PackError: It uses another tokenizer, has other columns, or is not a table, but the dataset
            is one.
    """
    schema, numbers = _grown(base, source.schema, source.name)
    if isinstance(source, Source):
        _check_no_statistics(base, source.name)
        return _renumbered_samples(source, schema, numbers)
    made, makes = (each.get("tokens") or {} for each in (base.packing, source.identity))
    if made.get("tokenizer") != makes.get("tokenizer"):
        raise PackError(
            f"{source.name} cannot be appended to {base.folder}: its tokenizer is "
            f"{makes.get('tokenizer')}, but that of the dataset is {made.get('tokenizer')}; use "
            "the same tokenizer (--tokenizer)"
        )
    columns = [(about["field"], about["column"]) for about in base.statistics]
    if columns != list(source.columns):
        raise PackError(
            f"{source.name} cannot be appended to {base.folder}: its fields and columns are "
            f"{list(source.columns)}, but those of the dataset are {columns}; use the same "
            "columns and groups"
        )
    sums = [_moments(about) for about in base.statistics]
    return replace(_renumbered_rows(source, schema, numbers), sums=sums)


def same_numbers(base: Manifest, schema: Schema) -> Schema:
    """Returns the schema of a dataset together with samples whose numbers are those of the dataset.

    Raises:
        SchemaError: The schema has other fields, or its names have other numbers.
        PackError: The dataset is a table.
    """
    grown, numbers = _grown(base, schema, "a sample of this schema")
    _check_no_statistics(base, "a sample")
    if _changed(numbers):
        raise SchemaError(
            f"classes or vocabularies of the schema have other numbers than in {base.folder}: list "
            "the names of the dataset first and new names after them, or leave the classes out"
        )
    return grown


def _check_no_statistics(base: Manifest, name: str) -> None:
    """Raises PackError if the manifest has statistics, which samples would make wrong."""
    if base.statistics:
        raise PackError(
            f"{name} cannot be appended to {base.folder}: it was packed from a table, and its "
            "manifest has statistics over all rows; append a table with the same columns"
        )


def _grown(base: Manifest, schema: Schema, name: str) -> tuple[Schema, Numbers]:
    """Returns the schema of the dataset with the new names, and the numbers of all names."""
    own = base.schema
    compared: tuple[tuple[str, Any, Any], ...] = (
        ("fields", list(own.fields.items()), list(schema.fields.items())),
        ("structure", own.structure, schema.structure),
        ("fields with vocabularies", sorted(own.vocabularies), sorted(schema.vocabularies)),
    )
    for what, there, given in compared:
        if there != given:
            raise SchemaError(
                f"{name} cannot be appended to {base.folder}: {what} must be the same, but it has "
                f"{_only(given, there)} and the dataset has {_only(there, given)}"
            )
    numbers: dict[str, NDArray[np.int64]] = {}
    classes = own.classes
    if schema.classes is not None and classes is None:
        raise SchemaError(
            f"{name} cannot be appended to {base.folder}: its classes have names "
            f"({', '.join(schema.classes[:3])}, ...), but those of the dataset are numbers "
            "without names; append samples with numbers of classes"
        )
    if classes is not None:
        classes, of_classes = _union(classes, schema.classes or classes)
        numbers |= {own.class_field: of_classes} if own.class_field else {}
    words = {}
    for field, known in own.vocabularies.items():
        words[field], numbers[field] = _union(known, schema.vocabularies[field])
    grown = replace(schema, classes=classes, vocabularies=words, records=own.records)
    return grown, numbers


def _changed(numbers: Numbers) -> Numbers:
    """Returns the numbers of the fields in which any number changes."""
    return {field: each for field, each in numbers.items() if (each != np.arange(len(each))).any()}


def _only(these: Any, those: Any) -> str:
    """Returns a text with the elements of a list that another one lacks, or with another value."""
    if not isinstance(these, list):
        return str(these)
    found = [each for each in these if each not in those] or these
    texts = (" ".join(map(str, each)) if isinstance(each, tuple) else each for each in found)
    return ", ".join(texts) or "none"


def _union(there: Sequence[str], more: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Returns all names, those of `there` first, and the number of each of `more`, int64 (n,)."""
    known = set(there)
    every = *there, *(name for name in dict.fromkeys(more) if name not in known)
    # Reversed, so that of equal names the first one gives the number.
    number_of = {name: number for number, name in reversed(list(enumerate(every)))}
    return every, np.array([number_of[name] for name in more], np.int64)


def _renumbered_samples(source: Source, schema: Schema, numbers: Numbers) -> Source:
    place_of = {name: place for place, name in enumerate(schema.fields)}
    places = {place_of[field]: each for field, each in numbers.items()}

    def renumbered(items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            values = list(item.values)
            try:
                for place, known in places.items() if values else ():
                    values[place] = _renumbered(values[place], known)
            except SchemaError as error:
                item = item._replace(error=SchemaError(f"{item.name}: {error}"))
            yield item._replace(values=values)

    processes = source.processes
    if processes is not None:
        call = processes.call
        processes = replace(
            processes,
            call=lambda functions: call(
                partial(_call_with_numbers, each, schema, numbers) for each in functions
            ),
        )
    return replace(
        source,
        schema=schema,
        items=lambda start: renumbered(source.items(start)),
        pick=lambda rows: renumbered(source.pick(rows)),
        rows=None,  # worker processes would encode the source's own numbers
        processes=processes,
    )


def _call_with_numbers(
    function: Callable[[Source], Any], schema: Schema, numbers: Numbers, source: Source
) -> Any:
    return function(_renumbered_samples(source, schema, numbers))


def _renumbered(value: Any, known: NDArray[np.int64]) -> Any:
    """Returns the dataset's number of a class or word; values that are none are unchanged."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value  # of another type, which encoding reports
    if number >= len(known):
        raise SchemaError(f"no class or word has the number {number}: there are {len(known)}")
    return value if number < 0 else int(known[number])


def _renumbered_rows(source: RowSource, schema: Schema, numbers: Numbers) -> RowSource:
    changed, names = _changed(numbers), {field: len(known) for field, known in numbers.items()}

    def convert(
        batch: pa.RecordBatch, origin: Origin, out: Mapping[str, NDArray[Any]] | None = None
    ) -> Converted:
        converted = source.convert(batch, origin, out)
        check_numbers(names, converted, origin)
        columns = list(converted.columns)
        for field, known in changed.items():
            values: Any = converted.fields[field]
            # Negative numbers stand for no class.
            values[...] = np.where(values < 0, values, known[values])
            # The statistics must describe the numbers that are stored, not those of the source.
            for at, column in enumerate(columns):
                if column.field == field and isinstance(column.values, np.ndarray):
                    columns[at] = replace(
                        column,
                        values=np.where(column.values < 0, column.values, known[column.values]),
                    )
        return Converted(converted.fields, columns)

    return replace(source, schema=schema, convert=convert if numbers else source.convert)


def _moments(about: Mapping[str, Any]) -> Moments:
    """Returns a column's statistics, given those of a manifest, where null is a NaN or infinity."""
    counts = about["count"], about["nulls"], about["nan"]
    if "min" not in about or not about["count"]:
        return Moments(*counts)
    low, high, mean, deviation = (
        math.nan if about[key] is None else about[key] for key in ("min", "max", "mean", "std")
    )
    # `std` is sqrt(squares / count): see `statistics.described`.
    return Moments(*counts, low, high, mean, deviation**2 * about["count"])
