"""What can be read as a dataset: packed folders, and what others wrote, as it is.

`registry` decides what a path, a URL or an object is; `base` says what a kind of data has to tell.
"""

from __future__ import annotations

# isort: off
from fastio.packed.remote import Remote as Remote
from fastio.sources.arrays import ArrayDataset as ArrayDataset
from fastio.sources.base import Findings as Findings, Found as Found, Options as Options
from fastio.sources.folder import (
    AUDIO_EXTENSIONS as AUDIO_EXTENSIONS,
    IMG_EXTENSIONS as IMG_EXTENSIONS,
    AudioFolder as AudioFolder,
    FolderDataset as FolderDataset,
    folder_extension as folder_extension,
)
from fastio.sources.hugging_face.dataset import HuggingFaceDataset as HuggingFaceDataset
from fastio.sources.registry import (
    check as check,
    describe as describe,
    find as find,
    find_data as find_data,
    open as open,
    open_found as open_found,
)
from fastio.sources.table.media import MediaTable as MediaTable
from fastio.sources.tar.dataset import TarDataset as TarDataset
