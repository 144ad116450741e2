"""WebDataset tars, read in place.

    path -> names -> headers (one pass) -> samples -> index (kept) -> dataset: row -> tar, bytes

`names` says which tars are meant, `headers` finds the members of one, `samples` groups them,
`values` knows what they hold, `fields` which of them a dataset has; `reader` is where the bytes
come from, of local tars or others.
"""

from __future__ import annotations

from fastio.formats.tars.dataset import Extents, TarDataset
from fastio.formats.tars.index import TarIndex, build_index, open_index
from fastio.formats.tars.names import expand_braces, find_tars
from fastio.formats.tars.reader import LocalTars, TarReader

__all__ = [
    "Extents",
    "LocalTars",
    "TarDataset",
    "TarIndex",
    "TarReader",
    "build_index",
    "expand_braces",
    "find_tars",
    "open_index",
]
