"""Data of the datasets package as a kind: directories of `save_to_disk`, and its objects."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from fastio.errors import SchemaError
from fastio.runtime.cores import available_cores
from fastio.sources.base import (
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    checked_files,
    decoded_images,
    files_findings,
)
from fastio.sources.hugging_face.check import check_arrow_streams, check_hugging_face_images
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.hugging_face.fields import wants_rows
from fastio.sources.hugging_face.groups import HuggingFaceGroups
from fastio.sources.hugging_face.sources import is_hugging_face
from fastio.sources.hugging_face.table import HuggingFaceTable
from fastio.sources.table import TableSamples
from fastio.sources.table.kind import COLUMN_OPTIONS


def _sniff(source: Any, options: Options) -> Any | None:
    return source if is_hugging_face(source) else None


def _open(found: Found) -> HuggingFaceDataset | TableSamples:
    options = found.options
    table = HuggingFaceTable(found.source, options.tables, options.roots)
    if options.filters is None:
        dataset = HuggingFaceDataset(table, options.tables)
        dataset.memory = options.memory
        return dataset
    if wants_rows(table, options.tables):
        raise SchemaError(
            f"filters cannot be used with {table.name}, which has images, nested lists or "
            "lists of strings: use ds.filter of the datasets package, or leave these columns "
            "out (columns=...)"
        )
    make = partial(HuggingFaceGroups, table)
    return TableSamples(make, options.tables, options.filters, options.memory)


def _describe(found: Found) -> dict[str, Any]:
    with HuggingFaceDataset(found.source) as dataset:
        nbytes = sum(os.path.getsize(path) for path in dataset.sources)
        return {
            "path": dataset.path,
            "kind": "hugging_face",
            "rows": len(dataset),
            "files": len(dataset.sources),
            "bytes": nbytes,
            "bytes_per_sample": nbytes / len(dataset),
            **dataset.schema.to_json(),
            "fingerprint": dataset.fingerprint,
        }


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    with HuggingFaceDataset(found.source) as dataset:
        dataset.limit(found.options.max_pixels, None)
        streams = check_arrow_streams(dataset.sources, available_cores())
        checks = checked_files(streams, "files", len(dataset.sources), progress)
        findings = files_findings(str(found.source), checks, len(dataset))
        if deep and not findings.damaged:
            images = check_hugging_face_images(dataset, available_cores())
            findings.images = decoded_images(images, len(dataset), progress)
    return findings


HUGGING_FACE = Kind(
    "hugging_face",
    "data of the datasets package",
    (HuggingFaceDataset,),
    COLUMN_OPTIONS | {"roots"},
    _sniff,
    _open,
    _describe,
    _check,
)
