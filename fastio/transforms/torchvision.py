"""torchvision's transforms as fastio's, where they mean the same. torchvision is never imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from fastio.errors import TransformError
from fastio.transforms.per_sample import Pipeline
from fastio.transforms.specs import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    Size,
    ToDtype,
    filter_name,
)


def from_torchvision(transform: object) -> list[Any] | None:
    """Returns a torchvision transform (v1 or v2) as a list of fastio's; None if it is unknown.

    It is recognised by its module and class, torchvision is never imported. What would change the
    result is not known: RandomResizedCrop with another filter than Pillow's three, a fill other
    than 0, Normalize that is not per channel.
    """
    kind = type(transform)
    if not kind.__module__.startswith("torchvision.transforms"):
        return None
    convert = _TORCHVISION.get(kind.__name__)
    try:
        return None if convert is None else convert(transform)
    except (TransformError, TypeError, ValueError):
        return None


def sample_form(transform: object) -> Literal["pillow", "tensor", "tv_tensor"]:
    """Returns the form of an image after a torchvision transform that `from_torchvision` knows."""
    form: Literal["pillow", "tensor", "tv_tensor"] = "pillow"
    for step in flat(transform):
        name = type(step).__name__
        if name == "ToImage":
            form = "tv_tensor"
        elif name in _TO_TENSOR and (form == "pillow" or name == "ToPureTensor"):
            form = "tensor"
    return form


def flat(transform: Any) -> Iterator[Any]:
    """Yields the steps of a torchvision Compose, or of a `Pipeline`, and of those in it."""
    kind, steps = type(transform), None
    if kind.__name__ == "Compose" and kind.__module__.startswith("torchvision.transforms"):
        steps = transform.transforms
    elif isinstance(transform, Pipeline):
        steps = transform.steps
    if steps is None:
        yield transform
    for step in steps or ():
        yield from flat(step)


def _from_compose(compose: Any) -> list[Any] | None:
    steps: list[Any] = []
    for transform in compose.transforms:
        known = from_torchvision(transform)
        if known is None:
            return None
        steps += known
    return steps


def _size(size: Any) -> Size:
    """Returns a size as fastio has it; torchvision stores an int or a list of one or two."""
    if isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else (int(size[0]), int(size[1]))


def _antialias(transform: Any) -> bool:
    # None was the default for a while; on Pillow images the filter is always antialiased.
    return getattr(transform, "antialias", True) is not False


def _from_resize(t: Any) -> list[Any]:
    name = filter_name(t.interpolation, "Resize")
    return [Resize(_size(t.size), name, t.max_size, _antialias(t))]


def _from_random_resized_crop(t: Any) -> list[Any]:
    name = filter_name(t.interpolation, "RandomResizedCrop")
    low, high = t.scale
    narrow, wide = t.ratio
    return [RandomResizedCrop(_size(t.size), (low, high), (narrow, wide), name, _antialias(t))]


def _from_random_crop(t: Any) -> list[Any] | None:
    padding = 0 if t.padding is None else t.padding
    plain = isinstance(padding, int) and not t.pad_if_needed and t.fill in (0, None)
    return [RandomCrop(_size(t.size), padding)] if plain and t.padding_mode == "constant" else None


def _from_to_dtype(t: Any) -> list[Any] | None:
    return None if isinstance(t.dtype, dict) else [ToDtype(t.dtype, bool(t.scale))]


def _from_image_classification(t: Any) -> list[Any]:
    """Returns the transforms that come with a model's weights."""
    return [
        Resize(_size(t.resize_size), filter_name(t.interpolation, "Resize")),
        CenterCrop(_size(t.crop_size)),
        ToDtype("float32", scale=True),
        Normalize(list(t.mean), list(t.std)),
    ]


# Those that take tensors only are among them: what they would do to a PIL image is an error.
_TO_TENSOR = frozenset(
    [
        "ConvertImageDtype",
        "ImageClassification",
        "Normalize",
        "PILToTensor",
        "ToDtype",
        "ToPureTensor",
        "ToTensor",
    ]
)
_TORCHVISION: dict[str, Callable[[Any], list[Any] | None]] = {
    "Compose": _from_compose,
    "RandomResizedCrop": _from_random_resized_crop,
    "Resize": _from_resize,
    "CenterCrop": lambda t: [CenterCrop(_size(t.size))],
    "RandomCrop": _from_random_crop,
    "RandomHorizontalFlip": lambda t: [RandomHorizontalFlip(float(t.p))],
    "RandomVerticalFlip": lambda t: [RandomVerticalFlip(float(t.p))],
    "ToTensor": lambda t: [ToDtype("float32", scale=True)],
    "PILToTensor": lambda t: [],
    "ToImage": lambda t: [],
    "ToPureTensor": lambda t: [],
    "ToDtype": _from_to_dtype,
    "ImageClassification": _from_image_classification,
    "ConvertImageDtype": lambda t: [ToDtype(t.dtype, scale=True)],
    "Normalize": lambda t: [Normalize(list(t.mean), list(t.std))],
}
