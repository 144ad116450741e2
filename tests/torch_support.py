"""Shared by tests that compare with torch: a dataset of its own kind, and equality of batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import fastio


class OwnDataset(Dataset[Any]):
    """A dataset of the user's own, which is loaded by torch's DataLoader: tuples of a number."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.arange(self._rows)[index],)


def equal(one: Any, other: Any) -> bool:
    """Whether two batches are equal in all values, shapes and dtypes."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def assert_same(given: Any, batch_size: int | None = 4, **options: Any) -> None:
    """Checks that a loader is native and gives what DataLoader gives."""
    torch.manual_seed(1)
    expected = list(DataLoader(given, batch_size, **options))
    torch.manual_seed(1)
    with fastio.Loader(given, batch_size, **options) as loader:
        assert loader.path == "native"
        found = list(loader)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert equal(one, other)
