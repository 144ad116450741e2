"""Packing: folders of images, lists, datasets, iterables and tables to sharded datasets.

    source -> items -> cells (threads) -> rows in order -> shards, journal -> manifest
    table -> pieces of rows -> records (threads) -> shards, journal -> manifest

`sources` and `lists` see what is packed as numbered samples, `infer` finds out their schema,
`images` and `cells` check and encode them, `reencode` makes them smaller where that is asked for,
`codebooks` has what the block codec needs, `pipeline` keeps their order and the memory in bounds,
`packer` cuts shards, `shards` writes them, `journal` remembers what is finished, `destination`
knows which files are ours. Tables are a source of their own kind (`tables`): `columnar` packs them
by columns instead of by rows, and `statistics` says what is in them. `export` goes the other way:
stored images to files.
"""

from __future__ import annotations

from fastio.pack.api import PackReport, Writer, pack
from fastio.pack.export import ExportReport, export

__all__ = ["ExportReport", "PackReport", "Writer", "export", "pack"]
