"""Arrays of torchvision's datasets that hold all images in memory. Does not import torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from fastio.errors import SchemaError
from fastio.sources.arrays import ArraySet, as_array, class_names, is_tensor

# (module below torchvision.datasets, class) -> attribute with the labels. Images are in `data`.
_SETS = {
    ("cifar", "CIFAR10"): "targets",
    ("cifar", "CIFAR100"): "targets",
    ("mnist", "MNIST"): "targets",
    ("mnist", "FashionMNIST"): "targets",
    ("mnist", "KMNIST"): "targets",
    ("mnist", "EMNIST"): "targets",
    ("mnist", "QMNIST"): "targets",
    ("svhn", "SVHN"): "labels",
    ("stl10", "STL10"): "labels",
    ("usps", "USPS"): "targets",
    ("semeion", "SEMEION"): "labels",
}
# The axes of an image, where there are channels.
_SHAPES = {"cifar": "HWC", "svhn": "CHW", "stl10": "CHW"}


class HeldSet(NamedTuple):
    """A torchvision dataset that is in memory.

    Attributes:
        arrays: Its images and labels; the fields of a sample are `image` and `label`.
        transform, target_transform: Its functions of images and labels, or None.
        settings: Compares equal as long as the same arrays and functions are there.
    """

    arrays: ArraySet
    transform: Any
    target_transform: Any
    settings: Any


def held_set(dataset: Any) -> HeldSet | None:
    """Returns a torchvision dataset that holds its images in memory; None for other objects.

    Raises:
        SchemaError: Its images or labels were replaced by objects of another type or shape.
    """
    kind = type(dataset)
    package, _, module = kind.__module__.rpartition(".")
    attribute = _SETS.get((module, kind.__qualname__))
    if package != "torchvision.datasets" or attribute is None:
        return None
    data: Any = getattr(dataset, "data", None)
    given = getattr(dataset, attribute, None)
    if not isinstance(data, np.ndarray) and not is_tensor(data):
        raise SchemaError(f"its data is a {type(data).__name__}, not an array")
    if len(data.shape) != len(_SHAPES.get(module, "HW")) + 1 or not _fits(module, data.shape):
        raise SchemaError(f"its data has the shape {tuple(data.shape)} and the dtype {data.dtype}")
    labels = _labels(dataset, module, given)
    if len(data) != len(labels):
        raise SchemaError(f"it has {len(data)} images and {len(labels)} labels")
    sources = {"image": data, "label": labels}
    arrays = ArraySet(
        sources, "tuple", kind.__name__, ("image",), class_names(dataset), as_tensors=False
    )
    # Converted labels are a new array each time, so their values are compared and not their
    # addresses.
    listed = xxhash.xxh3_64_intdigest(as_array(labels).tobytes()) if given is not labels else 0
    settings = arrays.layouts[0], listed or arrays.layouts[1]
    return HeldSet(arrays, dataset.transform, dataset.target_transform, settings)


def _fits(module: str, shape: Sequence[int]) -> bool:
    """Returns whether the channels of images are where torchvision expects them."""
    axes = _SHAPES.get(module, "HW")
    return "C" not in axes or shape[1 + axes.index("C")] == 3


def _labels(dataset: Any, module: str, given: Any) -> Any:
    """Returns the classes of the images: an integer array or tensor (n,).

    CIFAR's samples have labels of the type that is there, those of the other sets int.
    """
    if type(dataset).__name__ == "QMNIST":
        if not dataset.compat or not is_tensor(given):
            raise SchemaError("compat=False gives vectors as labels")
        given = given[:, 0]
    if not is_tensor(given) and not isinstance(given, (list, np.ndarray)):
        raise SchemaError(f"its labels are a {type(given).__name__}")
    labels = as_array(given) if is_tensor(given) else np.asarray(given)
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and len(labels)):
        raise SchemaError(f"its labels have the dtype {labels.dtype} and the shape {labels.shape}")
    if module == "cifar" or labels.dtype == np.int64:
        return given if is_tensor(given) else labels
    return labels.astype(np.int64)
