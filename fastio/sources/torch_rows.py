"""Torch datasets whose samples fastio reads without calling them: files, and arrays in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import TensorDataset

from fastio.errors import SchemaError
from fastio.packed.rows import Rows
from fastio.sources.arrays import ArrayDataset, array_set, is_array
from fastio.sources.torch_dataset import Slow, image_files
from fastio.sources.torchvision_sets import held_set


@dataclass(frozen=True)
class TorchRows:
    """A torch dataset whose samples fastio reads without calling its `__getitem__`.

    Attributes:
        count: the number of samples.
        open: returns the samples as a fastio dataset.
        settings: compares equal while the samples, before their transforms, are the same.
        transform: the dataset's transform of images, or None.
        target_transform: the dataset's function of labels, or None.
        tensors: whether samples are rows of arrays; otherwise a sample is an image and a number.
    """

    count: int
    open: Callable[[], Rows]
    settings: Any
    transform: Any = None
    target_transform: Any = None
    tensors: bool = False


def torch_rows(dataset: Any) -> TorchRows | Slow:
    """Returns the rows of a torch dataset that fastio can read: files, or arrays in memory.

    Returns:
        The rows of an ImageFolder (or a Subset or ConcatDataset of some), a torchvision dataset in
        memory, a TensorDataset, or an array; or why the dataset is not read natively.
    """
    name = type(dataset).__qualname__
    try:
        held = held_set(dataset)
        own = isinstance(dataset, TensorDataset) or is_array(dataset)
        arrays = array_set(dataset) if own else None
        if held is not None:
            return TorchRows(
                len(held.arrays),
                partial(ArrayDataset, held.arrays),
                held.settings,
                held.transform,
                held.target_transform,
            )
        if arrays is not None:
            arrays.schema()  # raises SchemaError for what cannot be a field
            opened = partial(ArrayDataset, arrays)
            return TorchRows(len(arrays), opened, arrays.layouts, tensors=True)
    except SchemaError as error:
        return Slow(f"the {name} cannot be read natively: {error}")
    files = image_files(dataset)
    if isinstance(files, Slow):
        return files
    samples, transform = files.samples, files.transform
    return TorchRows(len(samples), files.as_dataset, samples, transform, files.target_transform)
