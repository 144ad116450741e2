"""The transforms themselves: frozen specifications that check their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastio import _native
from fastio.errors import TransformError

Size = int | tuple[int, int]
_FILTERS = {
    "nearest": _native.Filter.nearest,
    "bilinear": _native.Filter.bilinear,
    "bicubic": _native.Filter.bicubic,
}
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_DTYPES = (*_FLOATS, "uint8")


def pair(size: object, name: str) -> tuple[int, int]:
    """Returns a size as (height, width); one number stands for both."""
    numbers = (size, size) if isinstance(size, int) else size
    if isinstance(numbers, Sequence) and len(numbers) == 1:
        numbers = (numbers[0], numbers[0])
    if (
        not isinstance(numbers, Sequence)
        or len(numbers) != 2
        or not all(isinstance(n, int) and 1 <= n <= 65535 for n in numbers)
    ):
        raise TransformError(f"{name}: size must be an int or (height, width), got {size!r}")
    return numbers[0], numbers[1]


def filter_name(interpolation: object, name: str) -> str:
    """Returns 'nearest', 'bilinear' or 'bicubic', also from an enum member with such a value."""
    text = str(getattr(interpolation, "value", interpolation))
    if text not in _FILTERS:
        raise TransformError(
            f"{name}: interpolation must be one of {', '.join(_FILTERS)}, got {interpolation!r}"
        )
    return text


def check_probability(p: float, name: str) -> None:
    """Raises TransformError if p is no probability."""
    if not 0.0 <= p <= 1.0:
        raise TransformError(f"{name}: p must be in [0, 1], got {p!r}")


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crops a random area with a random aspect ratio and resizes it.

    Args:
        size: size of the result in pixels, an int or (height, width).
        scale: range of the crop's area as a fraction of the image's area.
        ratio: range of the crop's width / height.
        interpolation: "nearest", "bilinear" or "bicubic", as Pillow defines them.
        antialias: widen the filter when the image is reduced, as Pillow always does.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        pair(self.size, "RandomResizedCrop")
        filter_name(self.interpolation, "RandomResizedCrop")
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0.0 < low <= high or (name == "scale" and high > 1.0):
                raise TransformError(f"RandomResizedCrop: {name} {(low, high)!r} is not a range")

    def add_to(self, chain: _native.Chain) -> None:
        height, width = pair(self.size, "RandomResizedCrop")
        filter_ = _FILTERS[filter_name(self.interpolation, "RandomResizedCrop")]
        chain.random_resized_crop(height, width, *self.scale, *self.ratio, filter_, self.antialias)


@dataclass(frozen=True)
class Resize:
    """Resizes the image.

    Args:
        size: size of the result in pixels: (height, width), or an int for the shorter edge; the
            longer edge then follows from the aspect ratio.
        interpolation, antialias: as in `RandomResizedCrop`.
        max_size: maximum length of the longer edge, greater than `size`, which must be an int.
    """

    size: Size
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        shorter, _ = pair(self.size, "Resize")
        filter_name(self.interpolation, "Resize")
        if self.max_size is None:
            return
        if not self.one_number():
            raise TransformError("Resize: max_size needs a size that is one number")
        if self.max_size <= shorter:
            raise TransformError(
                f"Resize: max_size must be greater than size, got {self.max_size} and {shorter}"
            )

    def one_number(self) -> bool:
        return isinstance(self.size, int) or len(self.size) == 1

    def add_to(self, chain: _native.Chain) -> None:
        height, width = pair(self.size, "Resize")
        chain.resize(
            height,
            0 if self.one_number() else width,
            self.max_size or 0,
            _FILTERS[filter_name(self.interpolation, "Resize")],
            self.antialias,
        )


@dataclass(frozen=True)
class CenterCrop:
    """Crops the centre of the image, and pads smaller images with zeros.

    Args:
        size: size of the result in pixels, an int or (height, width).
    """

    size: Size

    def __post_init__(self) -> None:
        pair(self.size, "CenterCrop")

    def add_to(self, chain: _native.Chain) -> None:
        chain.center_crop(*pair(self.size, "CenterCrop"))


@dataclass(frozen=True)
class RandomCrop:
    """Crops at a random position, without resizing.

    Args:
        size: size of the result in pixels, an int or (height, width).
        padding: number of zero pixels added on every side before the crop.
    """

    size: Size
    padding: int = 0

    def __post_init__(self) -> None:
        pair(self.size, "RandomCrop")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise TransformError(f"RandomCrop: padding must be an int >= 0, got {self.padding!r}")

    def add_to(self, chain: _native.Chain) -> None:
        chain.random_crop(*pair(self.size, "RandomCrop"), self.padding)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Flips the image left to right with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomHorizontalFlip")

    def add_to(self, chain: _native.Chain) -> None:
        chain.horizontal_flip(self.p)


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Flips the image top to bottom with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomVerticalFlip")

    def add_to(self, chain: _native.Chain) -> None:
        chain.vertical_flip(self.p)


@dataclass(frozen=True)
class ToDtype:
    """Converts the element type.

    Args:
        dtype: a torch.dtype or its name ("float32", "float16", "bfloat16", "float64", "uint8").
        scale: map the full range of uint8 to [0, 1], as ToTensor does.
    """

    dtype: Any
    scale: bool = False

    def __post_init__(self) -> None:
        name = str(self.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise TransformError(
                f"ToDtype: dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}"
            )
        object.__setattr__(self, "dtype", name)


@dataclass(frozen=True)
class Normalize:
    """Normalises each channel: (x - mean) / std.

    Pixels that are still uint8 are first converted to float32 in [0, 1], so that the result is that
    of torchvision's Normalize after ToTensor.

    Args:
        mean, std: one number per channel.
    """

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(x) for x in self.mean))
        object.__setattr__(self, "std", tuple(float(x) for x in self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise TransformError("Normalize: mean and std must have one number per channel")
        if 0.0 in self.std:
            raise TransformError("Normalize: a std of 0 divides by zero")


@dataclass(frozen=True, repr=False)
class OnBatch:
    """Calls a function once per batch, on the batch's device, after a field's other transforms.

    Random numbers that the function draws apply to the whole batch, unless it draws for each sample
    itself. An OnBatch can be pickled if its function can.

    Args:
        function: receives the field's part of a batch and returns its replacement: images are a
            tensor (N, C, H, W), or a list of N tensors (C, H, W) if sizes differ; numbers are a
            tensor (N, ...); strings are a list of N.

    Raises:
        TransformError: `function` is not callable.
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if isinstance(self.function, OnBatch) or not callable(self.function):
            raise TransformError(f"OnBatch takes a callable, got {self.function!r}")

    def __repr__(self) -> str:
        return f"OnBatch({spoken(self.function)})"


def spoken(step: object) -> str:
    """Returns a transform or a callable as a user would write it, on one line."""
    name = getattr(step, "__name__", None)
    if name == "<lambda>":
        return "lambda ...: ..."
    text = " ".join(repr(step).split())
    if text.startswith("<"):
        return str(name or type(step).__name__)
    return text


Geometric = (
    RandomResizedCrop | Resize | CenterCrop | RandomCrop | RandomHorizontalFlip | RandomVerticalFlip
)
Pointwise = ToDtype | Normalize
GEOMETRIC = (
    RandomResizedCrop,
    Resize,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
POINTWISE = (ToDtype, Normalize)
