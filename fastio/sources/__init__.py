"""What can be read as a dataset: packed folders, and what others wrote, as it is.

`registry` decides what a path, a URL or an object is; `base` says what a kind of data has to tell.
"""

from __future__ import annotations

from fastio.packed import Dataset
from fastio.packed.remote import RemoteDataset
from fastio.sources.audio_folder import AUDIO_EXTENSIONS, AudioFolder, folder_extension
from fastio.sources.base import Findings, Found, Images, Kind, Options
from fastio.sources.corpus import PaddedDataset, TokenDataset, TokenPad, TokenWindows
from fastio.sources.fixed import FixedWidth
from fastio.sources.folder import IMG_EXTENSIONS, FolderDataset
from fastio.sources.hugging_face import HuggingFaceDataset
from fastio.sources.layout import ShardPlace, TableField
from fastio.sources.registry import KINDS, check, describe, find, find_data, open, open_found
from fastio.sources.table import TableSamples
from fastio.sources.tar import TarDataset
from fastio.sources.tar.remote import RemoteTars

__all__ = [
    "AUDIO_EXTENSIONS",
    "IMG_EXTENSIONS",
    "KINDS",
    "AnyDataset",
    "AudioFolder",
    "Findings",
    "FixedWidth",
    "FolderDataset",
    "Found",
    "HuggingFaceDataset",
    "Images",
    "Kind",
    "Loadable",
    "Options",
    "PaddedDataset",
    "Remote",
    "RemoteTars",
    "ShardPlace",
    "TableField",
    "TableSamples",
    "TarDataset",
    "TokenDataset",
    "TokenPad",
    "TokenWindows",
    "check",
    "describe",
    "find",
    "find_data",
    "folder_extension",
    "open",
    "open_found",
    "remote_part",
]

# What the native path reads.
AnyDataset = Dataset | FolderDataset | TarDataset | HuggingFaceDataset
# ... and what it makes batches of: such a dataset, windows of its tokens, padded documents, or rows
# of tables.
Loadable = AnyDataset | TokenDataset | PaddedDataset | TableSamples
# What of it lies in a store.
Remote = RemoteDataset | RemoteTars


def remote_part(dataset: Loadable) -> Remote | None:
    """What of a dataset lies in a store: itself, or what its windows are made of; None: nothing."""
    if isinstance(dataset, (TokenDataset, PaddedDataset)):
        return dataset.dataset if isinstance(dataset.dataset, RemoteDataset) else None
    return dataset if isinstance(dataset, (RemoteDataset, RemoteTars)) else None
