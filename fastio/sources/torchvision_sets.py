"""Arrays of torchvision's datasets that hold all images in memory. Does not import torchvision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

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
    data, labels = dataset.data, _labels(dataset, getattr(dataset, attribute))
    if not isinstance(data, np.ndarray) and not is_tensor(data):
        raise SchemaError(f"its data is a {type(data).__name__}, not an array")
    images = as_array(data)
    if len(images) != len(labels):
        raise SchemaError(f"it has {len(images)} images and {len(labels)} labels")
    arrays = ArraySet(
        {"image": images, "label": labels}, "tuple", kind.__name__, ("image",), class_names(dataset)
    )
    place = images.__array_interface__
    same = (
        place["data"],
        place["shape"],
        place["strides"],
        xxhash.xxh3_64_intdigest(labels.tobytes()),
    )
    return HeldSet(arrays, dataset.transform, dataset.target_transform, same)


def _labels(dataset: Any, given: Any) -> NDArray[np.int64]:
    """Returns the class of each image, which torchvision gives as Python's int."""
    if getattr(dataset, "what", None) is not None and type(dataset).__name__ == "QMNIST":
        if not dataset.compat:
            raise SchemaError("compat=False gives vectors as labels")
        given = given[:, 0]
    labels = as_array(given) if is_tensor(given) else np.asarray(given)
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and len(labels)):
        raise SchemaError(f"its labels have the dtype {labels.dtype} and the shape {labels.shape}")
    return labels.astype(np.int64)
