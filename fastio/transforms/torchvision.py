"""torchvision's transforms as fastio's, where they mean the same. torchvision is never imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Literal

from fastio.errors import TransformError
from fastio.transforms import drawn, pixels
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
    result is not known: RandomResizedCrop with another filter than Pillow's three, RandomRotation
    with expand, RandomCrop with pad_if_needed, Grayscale to one channel, fills by type.
    """
    if not is_torchvision(transform):
        return None
    kind = type(transform)
    known = _TIMM if kind.__module__.startswith("timm.") else _TORCHVISION
    convert = known.get(kind.__name__)
    try:
        return None if convert is None else convert(transform)
    # Another version of torchvision has other attributes, or allows more values.
    except (AttributeError, TransformError, TypeError, ValueError):
        return None


def is_torchvision(transform: object) -> bool:
    """Returns whether a transform is one of torchvision's, or of those that timm adds to them."""
    return type(transform).__module__.startswith(("torchvision.transforms", "timm.data.transforms"))


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
    if t.pad_if_needed:
        return None
    if t.padding is None:
        return [RandomCrop(_size(t.size))]
    if isinstance(t.padding, int) and t.fill in (0, None) and t.padding_mode == "constant":
        return [RandomCrop(_size(t.size), t.padding)]
    return [
        pixels.Pad(_plain(t.padding), _plain(t.fill), t.padding_mode),
        RandomCrop(_size(t.size)),
    ]


def _plain(value: Any) -> Any:
    """Returns a parameter with its sequences as tuples, which specifications can be compared by."""
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _same(target: type, **names: str) -> Callable[[Any], list[Any]]:
    """Returns the conversion to a specification that has the same parameters.

    Args:
        target: class of the specification.
        names: attributes of the transform that have another name than the parameter.
    """
    parameters = [field.name for field in fields(target)]

    def convert(t: Any) -> list[Any]:
        values = {name: _plain(getattr(t, names.get(name, name))) for name in parameters}
        for name in ("interpolation", "policy"):
            if name in values:
                values[name] = str(getattr(values[name], "value", values[name]))
        return [target(**values)]

    return convert


def _inside(target: type, weights: str | None = None) -> Callable[[Any], list[Any] | None]:
    """Returns the conversion of a transform that holds others.

    Args:
        target: class of the specification.
        weights: attribute of the transform with its probability or weights.
    """

    def convert(t: Any) -> list[Any] | None:
        steps: list[Any] = []
        for transform in t.transforms:
            known = from_torchvision(transform)
            if known is None:
                return None
            steps.append(known[0] if len(known) == 1 else drawn.Compose(tuple(known)))
        if weights is None:
            return [target(tuple(steps))]
        return [target(tuple(steps), _plain(getattr(t, weights)))]

    return convert


def _from_random_choice(t: Any) -> list[Any] | None:
    return _inside(drawn.RandomChoice, "p" if hasattr(t, "p") else "probabilities")(t)


def _from_erasing(t: Any) -> list[Any]:
    value = "random" if t.value is None else t.value
    return [pixels.RandomErasing(float(t.p), _plain(t.scale), _plain(t.ratio), _plain(value))]


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
        "MaybePILToTensor",
        "MaybeToTensor",
        "Normalize",
        "PILToTensor",
        "ToDtype",
        "ToPureTensor",
        "ToTensor",
    ]
)
_TIMM: dict[str, Callable[[Any], list[Any] | None]] = {
    "RandomResizedCropAndInterpolation": _from_random_resized_crop,
    "MaybeToTensor": lambda t: [ToDtype("float32", scale=True)],
    "MaybePILToTensor": lambda t: [],
}
_TORCHVISION: dict[str, Callable[[Any], list[Any] | None]] = {
    "Compose": _from_compose,
    "RandomResizedCrop": _from_random_resized_crop,
    "Resize": _from_resize,
    "CenterCrop": lambda t: [CenterCrop(_size(t.size))],
    "RandomCrop": _from_random_crop,
    "Pad": _same(pixels.Pad),
    "ColorJitter": _same(pixels.ColorJitter),
    "Grayscale": _same(pixels.Grayscale),
    "RandomGrayscale": _same(pixels.RandomGrayscale),
    "GaussianBlur": _same(pixels.GaussianBlur),
    "RandomSolarize": _same(pixels.RandomSolarize),
    "RandomPosterize": _same(pixels.RandomPosterize),
    "RandomInvert": _same(pixels.RandomInvert),
    "RandomEqualize": _same(pixels.RandomEqualize),
    "RandomAutocontrast": _same(pixels.RandomAutocontrast),
    "RandomAdjustSharpness": _same(pixels.RandomAdjustSharpness),
    "RandomErasing": _from_erasing,
    "RandomRotation": _same(pixels.RandomRotation),
    "RandomAffine": _same(pixels.RandomAffine),
    "RandomPerspective": _same(pixels.RandomPerspective),
    "RandAugment": _same(drawn.RandAugment),
    "TrivialAugmentWide": _same(drawn.TrivialAugmentWide),
    "AutoAugment": _same(drawn.AutoAugment),
    "AugMix": _same(drawn.AugMix),
    "RandomApply": _inside(drawn.RandomApply, "p"),
    "RandomChoice": _from_random_choice,
    "RandomOrder": _inside(drawn.RandomOrder),
    "Identity": lambda t: [],
    "RGB": lambda t: [pixels.RGB()],
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
