"""Packing: converts folders of images, lists, datasets, iterables, tables and text to datasets.

    source -> parts -> encoder (threads) -> shards, journal -> manifest

Everything takes this way, through the one `packer`. A source gives parts, and an encoder turns
them into the columns of shards. `sources` opens data by the kind that the registry says it is. The
samples of images, sounds, lists, tars, datasets and iterables are encoded one by one by `samples`,
with `cells`, `images` and `reencode`; `infer` determines their schema, and `codebooks` has what the
block codec needs. `tables` and `tokens` open tables and text, of which
`columnar` encodes thousands of rows at once; `statistics` describes their columns.

`pipeline` keeps the order of the parts and bounds the memory, `shards` writes shards, `journal`
records which are finished, `destination` and `upload` know which files are ours. `export` converts
stored images back to files.
"""

from __future__ import annotations

from fastio.pack.api import PackReport, pack
from fastio.pack.export import ExportReport, export
from fastio.pack.writer import Writer

__all__ = ["ExportReport", "PackReport", "Writer", "export", "pack"]
