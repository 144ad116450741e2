"""Packed datasets as a kind of data: folders and URLs with a manifest."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import xxhash

from fastio.errors import DatasetNotFound, PackError
from fastio.packed import Dataset, check_images, is_dataset, is_half_written
from fastio.runtime.cores import available_cores
from fastio.sources.base import (
    LIMITS,
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    checked_files,
    decoded_images,
    described,
    files_findings,
)
from fastio.sources.table.names import table_kind
from fastio.sources.tar.reader import is_tar_url
from fastio.store import is_remote


def _sniff(source: Any, options: Options) -> Dataset | str | None:
    """Returns the path; for a URL the dataset, which must be opened to be recognised."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    if not is_remote(source):
        return os.fspath(source) if is_dataset(source) or is_half_written(source) else None
    url = str(source)
    if table_kind(url) is not None or is_tar_url(url):
        return None
    try:
        return Dataset(url, options.storage_options, options.kept, options.version)
    except DatasetNotFound:
        if options.version is not None:
            raise
        return None


def _open(found: Found) -> Dataset:
    parts = found.parts
    dataset = Dataset(parts, version=found.options.version) if isinstance(parts, str) else parts
    assert isinstance(dataset, Dataset)
    dataset.resident = found.options.resident
    return dataset


def _describe(found: Found) -> dict[str, Any]:
    with _open(found) as dataset:
        schema = dataset.schema.to_json()
        codecs = dataset.manifest.codec_counts()
        for field in schema["fields"]:
            if field["name"] in codecs:
                field["codecs"] = codecs[field["name"]]
            if field["type"] == "tokens":
                count = int(dataset.manifest.shard_tokens(field["name"]).sum())
                field |= {"tokens": count, "tokens_per_document": count / len(dataset)}
        about = {
            "shards": dataset.num_shards,
            "format_version": dataset.manifest.format_version,
            "codebook": _codebook(dataset),
            "packing": dataset.manifest.packing,
            "statistics": dataset.manifest.statistics,
            "version": dataset.manifest.version,
            "versions": _versions(dataset),
        }
        return described(dataset, dataset.manifest.nbytes, **about) | schema


def _versions(dataset: Dataset) -> list[dict[str, Any]]:
    """Describes this version and those before it, and says whether each can be opened."""
    kept = dataset.shards.kept_versions()
    manifest = dataset.manifest
    every = (*manifest.history, manifest.as_version())
    return [{**asdict(each), "kept": each.version in kept} for each in every]


def _codebook(dataset: Dataset) -> dict[str, Any] | None:
    """Returns the origin and hash of the block codec's codebook; None if there is none."""
    data = dataset.manifest.codebook
    if data is None:
        return None
    origin = dataset.manifest.packing.get("codebook")
    return {"origin": origin, "xxh3": xxhash.xxh3_64(data).hexdigest()}


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    with _open(found) as dataset:
        dataset.limit(found.options.max_pixels, None)
        checks = checked_files(dataset.verify(), "shards", dataset.num_shards, progress)
        findings = files_findings(dataset.path, checks, len(dataset), kind="shard")
        if deep:
            images = check_images(dataset, available_cores())
            findings.images = decoded_images(images, len(dataset), progress)
    return findings


def _pack(found: Found, skip_damaged: bool) -> Dataset:
    found.close()
    raise PackError(f"{getattr(found.source, 'path', found.source)} is already packed")


PACKED = Kind(
    "packed",
    "a packed dataset",
    (Dataset,),
    LIMITS | {"cache", "resident", "version", "partitions"},
    _sniff,
    _open,
    _describe,
    _check,
    _pack,
)
