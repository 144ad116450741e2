"""Packed datasets: a manifest, the shards that it names, and rows by their global number.

- `packed`: `Dataset`; `gathered` reads fields of many rows
- `manifest`: the description of the shards
- `shards`: where shards lie; those in a folder. `stored`: those in a store
- `shard`: one file of rows; `ipc`: Arrow files, laid out for a memory map and read without trust
- `compared`: verification in the background; `check`: all images decoded, for `fastio verify`
- `pixels`: stored images to pixels
- `rows`, `of_sample`: what all datasets of rows share
"""

from __future__ import annotations

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
from fastio.packed.packed import Dataset, Extent, StoredImage
from fastio.packed.pixels import decode_image, open_image
from fastio.packed.shards import ShardCheck
from fastio.packed.stored import HEADS

__all__ = [
    "CODEBOOK_BYTES",
    "FORMAT_VERSION",
    "HEADS",
    "JOURNAL_NAME",
    "MANIFEST_NAME",
    "BadImage",
    "Dataset",
    "Extent",
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
    "open_image",
    "write_manifest",
]
