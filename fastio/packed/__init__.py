"""Packed datasets: a manifest, the shards that it names, and rows by their global number."""

from __future__ import annotations

import os

from fastio.packed.check import BadImage, ImagesCheck, check_file, check_images
from fastio.packed.manifest import (
    CODEBOOK_BYTES,
    FORMAT_VERSION,
    JOURNAL_NAME,
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    is_dataset,
    is_half_written,
    write_manifest,
)
from fastio.packed.packed import Dataset, ShardCheck, StoredImage
from fastio.packed.pixels import decode_image, open_image

__all__ = [
    "CODEBOOK_BYTES",
    "FORMAT_VERSION",
    "JOURNAL_NAME",
    "MANIFEST_NAME",
    "BadImage",
    "Dataset",
    "ImagesCheck",
    "Manifest",
    "ShardCheck",
    "ShardEntry",
    "StoredImage",
    "check_file",
    "check_images",
    "decode_image",
    "is_dataset",
    "is_half_written",
    "open",
    "open_image",
    "write_manifest",
]


def open(path: str | os.PathLike[str]) -> Dataset:
    """Open a packed dataset.

    Args:
        path: the folder that `fastio pack` or `fastio.Writer` wrote.

    Returns:
        The dataset; close it, or use it in a `with` statement, to let go of its files.

    Raises:
        DatasetNotFound: the folder does not exist or has no manifest.
        ManifestInvalid: the manifest is damaged.
        FormatVersionUnsupported: a newer fastio wrote it.
    """
    return Dataset(path)
