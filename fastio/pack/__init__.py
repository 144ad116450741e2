"""Packing: converts folders of images, lists, datasets, iterables, tables and text to datasets.

    source -> parts -> encoder (threads) -> shards, journal -> manifest

All kinds of data are packed in this way, by one `packer`. A source gives parts, and an encoder
turns them into the columns of shards. The kind of the data in the registry says what is packed: the
rows of a dataset, or tables. `sources` opens these, and iterables; `files` opens what only packing
reads, lists of images and folders of NumPy's files. Rows are encoded one by one by `samples`, with
`cells` and `images`. Tables and text, of which `tokens` makes tables, are encoded by the thousand
rows by `tables`; `statistics` describes their columns.

`pipeline` keeps the order of the parts and bounds the memory, `journal` records which units are
finished, `destination` knows which files of a folder are ours, and `remote` writes to a store,
where `stored_journal` keeps the journal.
`units` packs the units of a source, one after the other or a single one by itself; `ray_engine`
has tasks on a Ray cluster do this (`ray_tasks`, `task_output`), and `ray_data` opens Ray Data's
datasets. `growth` makes a source fit the dataset that it is appended to, and `gc` deletes what no
version needs. `export` and `exporters` convert packed rows back to files.
"""

from __future__ import annotations

from fastio.pack.api import PackReport, pack
from fastio.pack.export import ExportReport, export
from fastio.pack.gc import GcReport, gc
from fastio.pack.writer import Writer

__all__ = ["ExportReport", "GcReport", "PackReport", "Writer", "export", "gc", "pack"]
