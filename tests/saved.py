"""Datasets of the datasets package for tests, made without any network or cache of the user's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import datasets
import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, List, Value

from tests.pictures import picture, save

datasets.disable_progress_bars()

NAMES = ["cat", "dog", "emu"]
IMAGES = Features(
    {
        "image": Image(),
        "label": ClassLabel(names=NAMES),
        "caption": Value("string"),
        "boxes": List(List(Value("float32"), length=4)),
    }
)


def jpeg_bytes(row: int) -> bytes:
    """The JPEG of a row, whose size differs from others'."""
    return save(picture(20 + row % 5, 30 + row % 7, row), "JPEG", quality=90)


def image_rows(rows: int) -> list[dict[str, Any]]:
    """Samples of the features `IMAGES`."""
    return [
        {
            "image": {"bytes": jpeg_bytes(row), "path": f"{row}.jpg"},
            "label": row % 3,
            "caption": f"picture {row}",
            "boxes": np.arange(4.0 * (row % 3)).reshape(-1, 4).tolist(),
        }
        for row in range(rows)
    ]


def image_dataset(rows: int = 12) -> Dataset:
    """JPEGs of several sizes in memory."""
    return Dataset.from_list(image_rows(rows), features=IMAGES)


def table_dataset(rows: int = 100) -> Dataset:
    """Numbers, strings and lists in memory."""
    rng = np.random.default_rng(0)
    samples = [
        {
            "number": row,
            "score": float(np.float32(rng.random())),
            "label": row % 3,
            "text": f"row {row} é",
            "list": rng.integers(0, 9, row % 4).tolist(),
            "vector": rng.integers(0, 9, 3).tolist(),
        }
        for row in range(rows)
    ]
    features = Features(
        {
            "number": Value("int64"),
            "score": Value("float32"),
            "label": ClassLabel(names=NAMES),
            "text": Value("string"),
            "list": List(Value("int32")),
            "vector": List(Value("int16"), length=3),
        }
    )
    return Dataset.from_list(samples, features=features)


def save_to(dataset: Dataset, folder: Path, **options: Any) -> str:
    """A directory of `save_to_disk`."""
    dataset.save_to_disk(str(folder), **options)
    return str(folder)
