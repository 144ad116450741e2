"""What can be read as a dataset: packed folders, and what others wrote, as it is.

`registry` decides what a path, a URL or an object is; `base` says what a kind of data has to tell.
"""

from __future__ import annotations

from fastio.dataset import Dataset
from fastio.dataset.remote import RemoteDataset
from fastio.formats.audio_folder import AUDIO_EXTENSIONS, AudioFolder, folder_extension
from fastio.formats.base import Findings, Found, Images, Kind, Options
from fastio.formats.fixed import FixedWidth
from fastio.formats.folder import IMG_EXTENSIONS, FolderDataset
from fastio.formats.hugging_face import HuggingFaceDataset
from fastio.formats.layout import ShardPlace, TableField
from fastio.formats.registry import KINDS, check, describe, find, find_data, open, open_found
from fastio.formats.tables import TableSamples
from fastio.formats.tars import TarDataset
from fastio.formats.tars.remote import RemoteTars
from fastio.formats.tokens import PaddedDataset, TokenDataset, TokenPad, TokenWindows

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
