"""What can be read as a dataset: packed folders, and what others wrote, as it is.

`registry` decides what a path, a URL or an object is; `base` says what a kind of data has to tell.
"""

from __future__ import annotations

from fastio.packed import Dataset
from fastio.packed.remote import Remote
from fastio.sources.arrays import ArrayDataset
from fastio.sources.base import Findings, Found, Options
from fastio.sources.folder import (
    AUDIO_EXTENSIONS,
    IMG_EXTENSIONS,
    AudioFolder,
    FolderDataset,
    folder_extension,
)
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.registry import check, describe, find, find_data, open, open_found
from fastio.sources.table.media import MediaTable
from fastio.sources.tar.dataset import TarDataset

__all__ = [
    "AUDIO_EXTENSIONS",
    "IMG_EXTENSIONS",
    "AnyDataset",
    "ArrayDataset",
    "AudioFolder",
    "Findings",
    "FolderDataset",
    "Found",
    "HuggingFaceDataset",
    "MediaTable",
    "Options",
    "Remote",
    "TarDataset",
    "check",
    "describe",
    "find",
    "find_data",
    "folder_extension",
    "open",
    "open_found",
]

# What the native path reads.
AnyDataset = Dataset | FolderDataset | TarDataset | HuggingFaceDataset
