"""Packed datasets: a manifest, the shards that it names, and rows by their global number.

- `packed`: `Dataset`, and how it reads fields of many rows
- `shards`: open shards, those in a folder; `stored`: those in a store; `comparisons`: their
  verification
- `manifest`, `manifest_writer`: the format of the manifest, reading and writing it
- `shard`, `shard_writer`: reading and writing a shard; `shard_table`: descriptions of many shards
- `ipc`: Arrow files, laid out for a memory map and read without trust; `metadata`: their metadata
- `check`: decodes all images, for `fastio verify`; `pixels`: stored images to pixels, and the EXIF
  orientation of files; `codebook`: codebooks
- `rows`: what all datasets have in common; `remote`: what datasets in a store have besides;
  `sample_errors`: which errors are errors of one sample; `subclasses`: classes of users
- `layout`: where the engine finds fields; `shard_images`: where the images of a packed dataset lie;
  `values`: fields that are not images; `image_lists`, `listed_images`: lists of images
- `grouping`: groups of equal numbers
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
