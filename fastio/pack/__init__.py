"""Packing: converts folders of images, lists, datasets, iterables, tables and text to datasets.

    source -> parts -> encoder (threads) -> shards, journal -> manifest

All kinds of data are packed in this way, by one `packer`. A source gives parts, and an encoder
turns them into the columns of shards. The kind of the data in the registry says what is packed: the
rows of a dataset, which are encoded one by one, or tables and text, which are encoded by the
thousand rows.

- `api`, `writer`, `progress`: `pack`, `Writer`, and the progress bar
- `packer`, `units`, `pipeline`: a dataset, and its units, from parts that are encoded in threads
- `sources`: opens what is packed; `items`: samples as a source; `row_sources`: tables as a source
- `objects`, `iterables`, `joined`: Python datasets, iterables, the rows of several datasets
- `lists`, `listed_urls`, `files`: lists of images, their URLs, folders of NumPy's files
- `tokens/`: text as tokens
- `encoder`: what an encoder does; `samples`, `tables`: the two encoders; `statistics`: of columns
- `cells`, `images`, `image_lists`, `unread_images`: values and images as shards store them
- `journal`, `journal_file`, `stored_journal`: which units are finished, and which process packs
- `destination`, `remote`, `stored_manifest`: the folder or the store that is packed to
- `names`, `refusals`, `apart`: names of files; what a pack may not overwrite
- `process_units`: units in worker processes; `ray_engine`, `ray_tasks`, `task_output`, `ray_data`:
  units as tasks on a Ray cluster, where they write shards, datasets of Ray Data
- `growth`, `gc`: appending to a dataset, deleting what no version needs
- `export`, `exporters`: packed rows as files again
"""

from __future__ import annotations

from fastio.pack.api import PackReport, pack
from fastio.pack.export import ExportReport, export
from fastio.pack.gc import GcReport, gc
from fastio.pack.writer import Writer

__all__ = ["ExportReport", "GcReport", "PackReport", "Writer", "export", "gc", "pack"]
