"""Packed datasets: a manifest, the shards that it names, and rows by their global number.

- `packed`: `Dataset`, and how it reads fields of many rows
- `shards`: open shards, those in a folder, and their verification; `stored`: those in a store
- `manifest`, `manifest_writer`: its format, reading and writing it
- `shard`, `shard_writer`: those of shards; `shard_table`: descriptions of many
- `ipc`: Arrow files, laid out for a memory map and read without trust; `metadata`: their metadata
- `check`: all images decoded, for `fastio verify`; `pixels`: stored images to pixels;
  `orientation`: that of exported JPEG files
- `rows`: what all datasets have in common; `layout`: where the engine finds fields;
  `shard_images`: where the images of a packed dataset lie
"""

from __future__ import annotations

# isort: off
from fastio.packed.check import (
    BadImage as BadImage,
    ImagesCheck as ImagesCheck,
    check_file as check_file,
    check_images as check_images,
    row_spans as row_spans,
)
from fastio.packed.manifest import (
    CODEBOOK_BYTES as CODEBOOK_BYTES,
    FORMAT_VERSION as FORMAT_VERSION,
    JOURNAL_NAME as JOURNAL_NAME,
    MANIFEST_NAME as MANIFEST_NAME,
    Manifest as Manifest,
    Version as Version,
    is_dataset as is_dataset,
    is_half_written as is_half_written,
    version_name as version_name,
)
from fastio.packed.manifest_writer import (
    rewrite_manifest as rewrite_manifest,
    write_manifest as write_manifest,
)
from fastio.packed.packed import Dataset as Dataset, StoredImage as StoredImage
from fastio.packed.pixels import decode_image as decode_image, open_image as open_image
from fastio.packed.shard_table import ShardTable as ShardTable
from fastio.packed.shard_writer import ShardEntry as ShardEntry
from fastio.packed.shards import ShardCheck as ShardCheck
from fastio.packed.stored import HEADS as HEADS
