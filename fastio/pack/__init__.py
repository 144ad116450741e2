"""Packing: folders of images, lists, datasets and iterables to sharded datasets.

    source -> items -> cells (threads) -> rows in order -> shards, journal -> manifest

`sources` and `lists` see what is packed as numbered samples, `infer` finds out their schema,
`images` and `cells` check and encode them, `reencode` makes them smaller where that is asked for,
`codebooks` has what the block codec needs, `pipeline` keeps their order and the memory in bounds,
`packer` cuts and writes shards, `journal` remembers what is finished, `destination` knows which
files are ours.
"""

from __future__ import annotations

from fastio.pack.api import PackReport, Writer, pack

__all__ = ["PackReport", "Writer", "pack"]
