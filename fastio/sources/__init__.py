"""What can be read as a dataset: packed folders, and what others wrote, as it is.

- `registry`: what a path, a URL or an object is; `base`: what a kind of data has to tell
- `packed`, `folder_kind`, `memory`, `tar/`, `table/`, `hugging_face/`, `corpus/`: the kinds of data
- `folder`, `stored_files`, `listed`: image and sound files, here, in a store, and in a list;
  `described`: those with a table about them
- `arrays`, `npy`, `torchvision_sets`: arrays in memory, NumPy's files, torchvision's datasets
- `encoded_rows`, `named_files`: images that are encoded files; which files data may name
- `torch_rows`, `torch_dataset`: datasets of torch, read natively or by torch's DataLoader
- `torch_calls`, `worker_start`: functions called in DataLoader's workers; how workers report errors
- `stateful`, `subset_indices`, `inside`: which objects have a state; indices of a Subset; which
  datasets an object refers to
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
