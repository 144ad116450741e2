"""Data of the datasets package as a kind: directories of `save_to_disk`, and its objects."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from fastio.errors import FastioError, PackError, SchemaError
from fastio.packed import ShardCheck
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.sources.base import (
    LIMITS,
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    check_image_files,
    check_values,
    checked_files,
    described,
    file_check,
    files_findings,
)
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.hugging_face.plain import bare
from fastio.sources.hugging_face.sources import has_transform, is_hugging_face, record_batches
from fastio.sources.hugging_face.table import HuggingFaceTable, open_groups, wants_rows
from fastio.sources.table.filters import Filter
from fastio.sources.table.indexed import TableSamples
from fastio.sources.table.kind import COLUMN_OPTIONS
from fastio.sources.table.opening import Opened


def _sniff(source: Any, options: Options) -> Any | None:
    return source if is_hugging_face(source) else None


def _open(found: Found) -> HuggingFaceDataset | TableSamples:
    options = found.options
    table = HuggingFaceTable(found.source, options.tables, options.roots)
    tables = table.formatted(options.tables)
    if options.filters is None:
        dataset = HuggingFaceDataset(table, tables)
        dataset.memory = options.memory
        return dataset
    if wants_rows(table, options.tables):
        raise SchemaError(
            f"filters cannot be used with {table.name}, which has images, nested lists or "
            "lists of strings: use ds.filter of the datasets package, or leave these columns "
            "out (columns=...)"
        )
    make = partial(open_groups, table)
    return TableSamples(make, tables, options.filters, options.memory)


def _pack(found: Found, skip_damaged: bool) -> HuggingFaceDataset | Opened:
    if isinstance(found.source, HuggingFaceDataset):
        return found.source
    if has_transform(found.source):
        raise PackError(
            "the dataset computes its samples with a function (set_transform), which cannot be "
            "packed: pack ds.with_format(None), without the function, or ds.map(function), "
            "with its results"
        )
    options = found.options
    table = HuggingFaceTable(found.source, options.tables, options.roots)
    if not wants_rows(table, options.tables):
        wanted = Filter.of(options.filters, table.schema, table.name)
        return Opened((), [table], wanted, stamp=table.stamp)
    if options.filters is not None:
        raise PackError("filters cannot be used with a dataset that has images: use ds.filter()")
    return HuggingFaceDataset(table, options.tables)


def _describe(found: Found) -> dict[str, Any]:
    with HuggingFaceDataset(found.source) as dataset:
        nbytes = sum(os.path.getsize(path) for path in dataset.sources)
        return described(dataset, nbytes, kind="hugging_face", files=len(dataset.sources))


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    table = HuggingFaceTable(found.source, found.options.tables, found.options.roots)
    with HuggingFaceDataset(table) as dataset:
        dataset.limit(found.options.max_pixels, None)
        streams = in_order(_check_stream, dataset.sources, available_cores())
        checks = checked_files(streams, "files", len(dataset.sources), progress)
        findings = files_findings(str(found.source), checks, len(dataset))
        if deep and not findings.damaged:
            name = os.path.basename(dataset.path.rstrip("/"))
            findings.images = check_image_files(dataset, lambda row: name, progress)
    return findings


def _check_stream(path: str) -> ShardCheck:
    """Looks at every value of an Arrow stream. A problem names record batch and column."""
    nbytes = 0
    problems: list[str | BaseException] = []
    try:
        nbytes = os.path.getsize(path)
        for stored in record_batches(path)[1]:
            for name, column in zip(stored.batch.schema.names, stored.batch.columns, strict=True):
                where = f"record batch {stored.number}, column {name!r}"
                problems += check_values(bare(column), where)
    except (FastioError, OSError) as error:
        problems.append(error)
    return file_check(path, nbytes, problems)


HUGGING_FACE = Kind(
    "hugging_face",
    "data of the datasets package",
    (HuggingFaceDataset,),
    COLUMN_OPTIONS | LIMITS | {"roots", "cache"},
    _sniff,
    _open,
    _describe,
    _check,
    _pack,
)
