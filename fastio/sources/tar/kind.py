"""WebDataset tars as a kind of data.

Apart from their headers, tars have no checksums. A check tells whether the headers, and with them
the positions of all files, are valid; whether the tar is truncated; whether every sample has the
same fields; and whether images can be decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastio.errors import FastioError, OptionError, SourceNotFound, StoreError
from fastio.packed import BadImage, ImagesCheck, ShardCheck, check_file, row_spans
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import Image
from fastio.sources.base import (
    LIMITS,
    Findings,
    Found,
    Images,
    Kind,
    LackedField,
    Options,
    Progress,
    checked_files,
    decoded_images,
    described,
    file_check,
    files_findings,
)
from fastio.sources.table.names import table_kind
from fastio.sources.tar.dataset import TarDataset
from fastio.sources.tar.fields import choose_columns, complete_rows, field_name, lacks
from fastio.sources.tar.headers import TarSamples, Window, check_end, samples_of
from fastio.sources.tar.index import TarIndex, assemble
from fastio.sources.tar.reader import (
    LocalTars,
    StoreTars,
    TarReader,
    find_tars,
    is_tar_url,
    open_tars,
)
from fastio.store import is_remote

_AT_ONCE = 8  # tars that are read at the same time


def _sniff(source: Any, options: Options) -> list[str] | LocalTars | StoreTars | None:
    """Returns the paths of tars; of a URL the reader of its tars."""
    if isinstance(source, (list, tuple)) and any(
        is_remote(each) and is_tar_url(each) for each in source
    ):
        if not all(is_remote(each) and is_tar_url(each) for each in source):
            raise OptionError("a list of tars must contain only tars, all local or all by URL")
        return open_tars(source, options.storage_options)
    if not (isinstance(source, (str, os.PathLike)) and is_remote(source)):
        return find_tars(source)
    url = str(source)
    if is_tar_url(url):
        return open_tars(url, options.storage_options)
    if table_kind(url) is None:
        with suppress(SourceNotFound, StoreError):
            return open_tars(url, options.storage_options)
    return None


def _open(found: Found) -> TarDataset:
    options = found.options
    return TarDataset(
        found.source,
        fields=options.fields,
        incomplete=options.incomplete or "raise",
        cache=options.kept,
        storage_options=options.storage_options,
        reader=found.parts if isinstance(found.parts, StoreTars) else None,
    )


def _pack(found: Found, skip_damaged: bool) -> TarDataset:
    """Returns all samples; those that lack a field are bad ones, to stop at or to leave out."""
    if isinstance(found.source, TarDataset):
        return found.source
    dataset = _open(replace(found, options=replace(found.options, incomplete="keep")))
    dataset.limit(None, found.options.max_unzipped_bytes)
    return dataset


def _describe(found: Found) -> dict[str, Any]:
    with _open(found) as dataset:
        return described(dataset, dataset.nbytes, tars=len(dataset.tars))


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    remote = isinstance(found.parts, StoreTars)
    names: list[str] = found.parts.names if remote else found.parts
    with closing(found.parts if remote else LocalTars()) as reader:
        return _checked(found, reader, names, deep, progress)


def _checked(
    found: Found,
    reader: LocalTars | StoreTars,
    names: Sequence[str],
    deep: bool,
    progress: Progress,
) -> Findings:
    samples: dict[str, TarSamples] = {}

    def structure() -> Iterator[ShardCheck]:
        for check, in_tar in in_order(partial(_check_tar, reader), names, _AT_ONCE):
            if in_tar is not None:
                samples[check.name] = in_tar
            yield check

    checks = checked_files(structure(), "tars", len(names), progress)
    rows = sum(map(len, samples.values()))
    findings = files_findings(str(found.source), checks, rows, lacked=[], kind="tar")
    findings.images = Images() if deep else None
    if rows or not findings.damaged:
        versions = [(name, "", reader.size(name)) for name in samples]
        index = assemble(reader, versions, list(samples.values()))
        findings.lacked = lacked_fields(index)
        if deep:
            most = found.options.max_pixels or MAX_PIXELS
            check_rows = partial(_check_rows, reader, index, most)
            images = in_order(check_rows, row_spans(index.first_row.tolist()), available_cores())
            findings.images = decoded_images(images, rows, progress)
    if findings.images is not None and findings.damaged:
        findings.images.not_decoded = None
    return findings


def _check_tar(reader: LocalTars | StoreTars, name: str) -> tuple[ShardCheck, TarSamples | None]:
    """Reads the headers of a tar to its end. Returns its samples too if it is valid."""
    nbytes = 0
    try:
        window = Window(reader, name)
        nbytes = window.size
        samples = samples_of(window)
        check_end(window)
    except SourceNotFound:
        return ShardCheck(name, nbytes, "missing"), None
    except (FastioError, OSError) as error:
        # The message begins with the path, and the name is shown beside it anyway.
        problem = str(error).removeprefix(reader.where(name)).removeprefix(" is ")
        return file_check(name, nbytes, [problem]), None
    return ShardCheck(name, nbytes, None), samples


def lacked_fields(index: TarIndex) -> list[LackedField]:
    """Returns the fields that some samples lack, or SchemaError if several have one name."""
    found = []
    for column in choose_columns(index, None):
        _, first = complete_rows(index, [column])
        if first is not None:
            _, row, count = first
            (tar,) = index.tar_numbers(np.array([row])).tolist()
            name, key = index.tars[tar].name, index.key(row)
            found.append(LackedField(column.name, count, name, key, lacks(index, column, row)))
    return found


def _check_rows(
    reader: TarReader, index: TarIndex, max_pixels: int, part: tuple[int, range]
) -> ImagesCheck:
    """Decodes the images of some rows of one tar."""
    tar, rows = part
    name, first = index.tars[tar].name, int(index.first_row[tar])
    bad = []
    for extension, about in index.extensions.items():
        if not isinstance(about.field, Image):
            continue
        offsets, lengths = index.offsets(extension), index.lengths(extension)
        there = [row for row in rows if offsets[row] >= 0]
        files = reader.read_ranges(name, [(int(offsets[row]), int(lengths[row])) for row in there])
        for row, data in zip(there, files, strict=True):
            try:
                check_file(bytes(data), max_pixels)
            except ValueError as error:
                problem = f"sample {index.key(row)!r}: {error}"
                bad.append(BadImage(row, name, row - first, field_name(extension), problem))
    return ImagesCheck(len(rows), sorted(bad, key=lambda image: image.row))


TARS = Kind(
    "tars",
    "tars",
    (TarDataset,),
    LIMITS | {"cache", "fields", "incomplete", "partitions"},
    _sniff,
    _open,
    _describe,
    _check,
    _pack,
)
