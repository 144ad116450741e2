"""Packed datasets: a manifest, the shards that it names, and rows by their global number.

- `packed`: `Dataset`, and how it reads fields of many rows
- `shards`: open shards, those in a folder, and their verification; `stored`: those in a store
- `manifest`, `manifest_writer`: its format, reading and writing it
- `shard`, `shard_writer`: those of shards; `shard_table`: descriptions of many
- `ipc`: Arrow files, laid out for a memory map and read without trust; `metadata`: their metadata
- `check`: all images decoded, for `fastio verify`; `pixels`: stored images to pixels;
  `orientation`: that of exported JPEG files
- `rows`: what all datasets have in common; `layout`: where the engine finds fields
"""

from __future__ import annotations

from fastio.packed.check import BadImage, ImagesCheck, check_file, check_images, row_spans
from fastio.packed.manifest import (
    CODEBOOK_BYTES,
    FORMAT_VERSION,
    JOURNAL_NAME,
    MANIFEST_NAME,
    Manifest,
    Version,
    is_dataset,
    is_half_written,
    version_name,
)
from fastio.packed.manifest_writer import write_manifest
from fastio.packed.packed import Dataset, StoredImage
from fastio.packed.pixels import decode_image, open_image
from fastio.packed.shard_table import ShardTable
from fastio.packed.shard_writer import ShardEntry
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
    "ImagesCheck",
    "Manifest",
    "ShardCheck",
    "ShardEntry",
    "ShardTable",
    "StoredImage",
    "Version",
    "check_file",
    "check_images",
    "decode_image",
    "is_dataset",
    "is_half_written",
    "open_image",
    "row_spans",
    "version_name",
    "write_manifest",
]
