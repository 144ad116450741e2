"""What can be read as a dataset: packed folders, and folders of images as they are."""

from __future__ import annotations

import os

from fastio.dataset import Dataset, is_dataset, is_half_written
from fastio.errors import DatasetNotFound
from fastio.formats.folder import IMG_EXTENSIONS, FolderDataset

__all__ = ["IMG_EXTENSIONS", "FolderDataset", "open_any"]


def open_any(path: str | os.PathLike[str]) -> Dataset | FolderDataset:
    """Open a packed dataset, or else a folder of images.

    Args:
        path: a folder with a manifest, or one with a folder of images for each class.

    Raises:
        SourceNotFound: it is neither.
        ManifestInvalid: the manifest is damaged.
    """
    if is_half_written(path):
        raise DatasetNotFound(
            f"{os.fspath(path)} holds a half-written dataset: finish it with `fastio pack SOURCE "
            f"{os.fspath(path)} --resume`"
        )
    return Dataset(path) if is_dataset(path) else FolderDataset(path)
