"""A loader of the images of `folder` (conftest.py), which tell their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastio import Loader, Resize
from tests.support import told

ROWS = 24  # of numbered_folder
SMALL = [Resize((8, 8))]


def loader(folder: Path, batch_size: int | None = 5, **options: Any) -> Loader:
    options = {"transforms": SMALL, "num_workers": 2, "seed": 0} | options
    return Loader(folder, batch_size, **options)


def rows_of(batches: Any) -> list[list[int]]:
    """The rows of each batch, read off its images."""
    return [told(images) for images, _ in batches]
