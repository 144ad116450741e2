"""WebDataset tars as a kind of data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from fastio.errors import OptionError, SourceNotFound, StoreError
from fastio.packed import ShardCheck
from fastio.runtime.cores import available_cores
from fastio.runtime.memory import MAX_PIXELS
from fastio.sources.base import (
    Findings,
    Found,
    Images,
    Kind,
    Options,
    Progress,
    checked_files,
    decoded_images,
)
from fastio.sources.table.files import table_kind
from fastio.sources.tar.check import check_tar_images, check_tars, lacked_fields
from fastio.sources.tar.dataset import TarDataset
from fastio.sources.tar.index import LOCAL_WINDOW_BYTES, assemble
from fastio.sources.tar.names import find_tars
from fastio.sources.tar.reader import LocalTars
from fastio.sources.tar.remote import (
    STORE_WINDOW_BYTES,
    RemoteTars,
    StoreTars,
    is_tar_url,
    open_store_tars,
)
from fastio.sources.tar.samples import TarSamples
from fastio.store import is_remote

_AT_ONCE = 8  # tars that are read at the same time


def _sniff(source: Any, options: Options) -> list[str] | StoreTars | None:
    """The tars' paths; behind a URL what reads them."""
    if isinstance(source, (list, tuple)) and any(
        is_remote(each) and is_tar_url(each) for each in source
    ):
        raise OptionError(
            "a list of tars must contain local files: give remote tars as one pattern, such as "
            "s3://bucket/train-{000..009}.tar"
        )
    if not (isinstance(source, (str, os.PathLike)) and is_remote(source)):
        return find_tars(source)
    url = str(source)
    if is_tar_url(url):
        return open_store_tars(url, options.storage_options)
    if table_kind(url) is None:
        with suppress(SourceNotFound, StoreError):
            return open_store_tars(url, options.storage_options)
    return None


def _open(found: Found) -> TarDataset:
    options = found.options
    incomplete = options.incomplete or "raise"
    if isinstance(found.parts, StoreTars):
        return RemoteTars(
            str(found.source),
            options.storage_options,
            options.kept,
            fields=options.fields,
            incomplete=incomplete,
            reader=found.parts,
        )
    return TarDataset(found.source, fields=options.fields, incomplete=incomplete)


def _describe(found: Found) -> dict[str, Any]:
    with _open(found) as dataset:
        return {
            "path": dataset.path,
            "rows": len(dataset),
            "tars": len(dataset.tars),
            "bytes": dataset.nbytes,
            "bytes_per_sample": dataset.nbytes / len(dataset),
            **dataset.schema.to_json(),
            "fingerprint": dataset.fingerprint,
        }


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    if isinstance(found.parts, StoreTars):
        with closing(found.parts) as reader:
            return _checked(found, reader, reader.names, STORE_WINDOW_BYTES, deep, progress)
    with closing(LocalTars()) as reader:
        return _checked(found, reader, found.parts, LOCAL_WINDOW_BYTES, deep, progress)


def _checked(
    found: Found,
    reader: LocalTars | StoreTars,
    names: list[str],
    window_bytes: int,
    deep: bool,
    progress: Progress,
) -> Findings:
    samples: dict[str, TarSamples] = {}

    def structure() -> Iterator[ShardCheck]:
        for check, in_tar in check_tars(reader, names, window_bytes, _AT_ONCE):
            if in_tar is not None:
                samples[check.name] = in_tar
            yield check

    checks = checked_files(structure(), "tars", len(names), progress)
    findings = Findings(
        path=str(found.source),
        files=len(names),
        nbytes=sum(check.nbytes for check in checks),
        rows=sum(map(len, samples.values())),
        damaged=[check for check in checks if check.problem is not None],
        images=Images() if deep else None,
        lacked=[],
        kind="tar",
    )
    if findings.rows or not findings.damaged:
        index = assemble(reader, list(samples), [""] * len(samples), list(samples.values()))
        findings.lacked = lacked_fields(index)
        if deep:
            most = found.options.max_pixels or MAX_PIXELS
            images = check_tar_images(reader, index, available_cores(), most)
            findings.images = decoded_images(images, findings.rows, progress)
    if findings.images is not None and findings.damaged:
        findings.images.not_decoded = None
    return findings


TARS = Kind(
    "tars",
    "tars",
    (TarDataset,),
    frozenset({"cache", "fields", "incomplete"}),
    _sniff,
    _open,
    _describe,
    _check,
)
