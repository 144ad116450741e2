"""Datasets of Hugging Face's datasets package, read without it: directories and objects.

    sources (what there is) -> rows (batches, indices) -> plain (types) -> table

`groups` is what the tables' path reads; `dataset` gives any row, with its images (`images`, whose
bytes lie in files that are `mapped`) and lists of lists (`nested`). `fields` decides what becomes
what, `python_rows` whether rows are as indexing gives them, `check` is for `fastio verify`. What
the package writes about columns is in `fastio.sources.table.features`.
"""

from __future__ import annotations

from fastio.sources.hugging_face.check import check_arrow_streams, check_hugging_face_images
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.hugging_face.fields import wants_rows
from fastio.sources.hugging_face.groups import HuggingFaceGroups
from fastio.sources.hugging_face.python_rows import unlike_python
from fastio.sources.hugging_face.sources import (
    has_transform,
    is_dataset_object,
    is_hugging_face,
)
from fastio.sources.hugging_face.table import HuggingFaceTable

__all__ = [
    "HuggingFaceDataset",
    "HuggingFaceGroups",
    "HuggingFaceTable",
    "check_arrow_streams",
    "check_hugging_face_images",
    "has_transform",
    "is_dataset_object",
    "is_hugging_face",
    "unlike_python",
    "wants_rows",
]
