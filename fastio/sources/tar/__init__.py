"""WebDataset tars, read in place.

    path -> names -> headers (one pass) -> samples -> index (kept) -> dataset: row -> tar, bytes

`names` says which tars are meant, `headers` finds the members of one, `samples` groups them,
`values` knows what they hold, `fields` which of them a dataset has, `files` brings them; `reader`
is where the bytes come from, of local tars or others. `check` tells what is wrong with tars.
"""

from __future__ import annotations

from fastio.sources.tar.check import LackedField, check_tar_images, check_tars, lacked_fields
from fastio.sources.tar.dataset import TarDataset
from fastio.sources.tar.files import Extents
from fastio.sources.tar.index import (
    LOCAL_WINDOW_BYTES,
    TarIndex,
    assemble,
    build_index,
)
from fastio.sources.tar.kept import open_index
from fastio.sources.tar.names import expand_braces, find_tars
from fastio.sources.tar.reader import LocalTars, TarReader
from fastio.sources.tar.samples import TarSamples

__all__ = [
    "LOCAL_WINDOW_BYTES",
    "Extents",
    "LackedField",
    "LocalTars",
    "TarDataset",
    "TarIndex",
    "TarReader",
    "TarSamples",
    "assemble",
    "build_index",
    "check_tar_images",
    "check_tars",
    "expand_braces",
    "find_tars",
    "lacked_fields",
    "open_index",
]
