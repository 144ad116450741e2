"""Image transforms as frozen specifications, with torchvision's names, parameters and meaning.

A list of them runs in three parts. The geometric ones (crops, resizes, flips) become one
`fastio._native.Geometry`, which the engine's threads apply while they decode: only the pixels that
are wanted are computed. `Normalize` and `ToDtype` come next and change values, not places. Any
other callable comes last and runs on the whole batch::

    transforms = [RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(mean, std), mixup]

The random draws of the geometric part are a function of (seed, epoch, row, place in the list), so
they can be asked for afterwards: see `augmentation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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


def _pair(size: object, name: str) -> tuple[int, int]:
    """A size as (height, width); one number stands for both."""
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


def _filter_name(interpolation: object, name: str) -> str:
    """'nearest', 'bilinear' or 'bicubic', also from an enum member with such a value."""
    text = str(getattr(interpolation, "value", interpolation))
    if text not in _FILTERS:
        raise TransformError(
            f"{name}: interpolation must be one of {', '.join(_FILTERS)}, got {interpolation!r}"
        )
    return text


def _check_probability(p: float, name: str) -> None:
    if not 0.0 <= p <= 1.0:
        raise TransformError(f"{name}: p must be in [0, 1], got {p!r}")


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crops a random area of a random aspect ratio and resizes it.

    Args:
        size: of the result in pixels, an int or (height, width).
        scale: range of the crop's part of the image's area.
        ratio: range of the crop's width / height.
        interpolation: "nearest", "bilinear" or "bicubic", as Pillow defines them.
        antialias: widen the filter when shrinking, as Pillow always does.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        _pair(self.size, "RandomResizedCrop")
        _filter_name(self.interpolation, "RandomResizedCrop")
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0.0 < low <= high or (name == "scale" and high > 1.0):
                raise TransformError(f"RandomResizedCrop: {name} {(low, high)!r} is no range")

    def add_to(self, geometry: _native.Geometry) -> None:
        height, width = _pair(self.size, "RandomResizedCrop")
        filter_ = _FILTERS[_filter_name(self.interpolation, "RandomResizedCrop")]
        geometry.random_resized_crop(
            height, width, *self.scale, *self.ratio, filter_, self.antialias
        )


@dataclass(frozen=True)
class Resize:
    """Resizes the image.

    Args:
        size: of the result in pixels: (height, width), or an int for the shorter edge, the other
            one following the aspect ratio.
        interpolation, antialias: as in `RandomResizedCrop`.
        max_size: the longer edge's limit, for an int size.
    """

    size: Size
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        _pair(self.size, "Resize")
        _filter_name(self.interpolation, "Resize")
        if self.max_size is not None and (not self._one_number() or self.max_size < 1):
            raise TransformError("Resize: max_size goes with a size of one number")

    def _one_number(self) -> bool:
        return isinstance(self.size, int) or len(self.size) == 1

    def add_to(self, geometry: _native.Geometry) -> None:
        height, width = _pair(self.size, "Resize")
        geometry.resize(
            height,
            0 if self._one_number() else width,
            self.max_size or 0,
            _FILTERS[_filter_name(self.interpolation, "Resize")],
            self.antialias,
        )


@dataclass(frozen=True)
class CenterCrop:
    """Cuts out the middle; where the image is smaller, zeros surround it.

    Args:
        size: of the result in pixels, an int or (height, width).
    """

    size: Size

    def __post_init__(self) -> None:
        _pair(self.size, "CenterCrop")

    def add_to(self, geometry: _native.Geometry) -> None:
        geometry.center_crop(*_pair(self.size, "CenterCrop"))


@dataclass(frozen=True)
class RandomCrop:
    """Cuts out a random place, without resizing.

    Args:
        size: of the result in pixels, an int or (height, width).
        padding: zeros added on every side first, in pixels.
    """

    size: Size
    padding: int = 0

    def __post_init__(self) -> None:
        _pair(self.size, "RandomCrop")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise TransformError(f"RandomCrop: padding must be an int >= 0, got {self.padding!r}")

    def add_to(self, geometry: _native.Geometry) -> None:
        geometry.random_crop(*_pair(self.size, "RandomCrop"), self.padding)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors left and right with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.p, "RandomHorizontalFlip")

    def add_to(self, geometry: _native.Geometry) -> None:
        geometry.horizontal_flip(self.p)


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Mirrors top and bottom with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.p, "RandomVerticalFlip")

    def add_to(self, geometry: _native.Geometry) -> None:
        geometry.vertical_flip(self.p)


@dataclass(frozen=True)
class ToDtype:
    """Changes the element type.

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
    """(x - mean) / std for each channel.

    On pixels that are still uint8 it means what torchvision's does after ToTensor: they become
    float32 in [0, 1] first.

    Args:
        mean, std: one number a channel.
    """

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(x) for x in self.mean))
        object.__setattr__(self, "std", tuple(float(x) for x in self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise TransformError("Normalize: mean and std must have one number a channel each")
        if 0.0 in self.std:
            raise TransformError("Normalize: a std of 0 divides by zero")


Geometric = (
    RandomResizedCrop | Resize | CenterCrop | RandomCrop | RandomHorizontalFlip | RandomVerticalFlip
)
Pointwise = ToDtype | Normalize
_GEOMETRIC = (
    RandomResizedCrop,
    Resize,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
_POINTWISE = (ToDtype, Normalize)


@dataclass(frozen=True)
class Compiled:
    """A list of transforms, taken apart.

    Attributes:
        geometry: crops, resizes and flips, for the engine's threads.
        tail: ToDtype and Normalize.
        batch: callables that take and return a batch of the field's images.
    """

    geometry: tuple[Geometric, ...] = ()
    tail: tuple[Pointwise, ...] = ()
    batch: tuple[Callable[[Any], Any], ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every image, or None where it depends on the image."""
        size: tuple[int, int] | None = None
        for step in self.geometry:
            if isinstance(step, Resize) and step._one_number():
                size = None
            elif isinstance(step, (RandomResizedCrop, Resize, CenterCrop, RandomCrop)):
                size = _pair(step.size, type(step).__name__)
        return size

    def native(self) -> _native.Geometry:
        """The geometric part for the engine.

        Raises:
            TransformError: it cannot be done in one resampling.
        """
        geometry = _native.Geometry()
        for step in self.geometry:
            try:
                step.add_to(geometry)
            except ValueError as error:
                raise TransformError(
                    f"{step}: {error}. Give one resizing step, or do the second one in a callable "
                    "at the end of the list, which runs on the batch"
                ) from error
        return geometry


def compile(transforms: Sequence[Any]) -> Compiled:
    """Takes a list of transforms apart; see the module's description.

    torchvision's own objects are accepted where `from_torchvision` knows them.

    Raises:
        TransformError: a step is no transform, stands after a later part, or the geometric ones
            cannot be done in one resampling.
    """
    geometry: list[Geometric] = []
    tail: list[Pointwise] = []
    batch: list[Callable[[Any], Any]] = []
    for given in transforms:
        known = from_torchvision(given)
        for step in [given] if known is None else known:
            if isinstance(step, _GEOMETRIC):
                if tail or batch:
                    raise TransformError(
                        f"{step} stands after {(tail + batch)[-1]!r}: crops, resizes and flips "
                        "come first"
                    )
                geometry.append(step)
            elif isinstance(step, _POINTWISE):
                if batch:
                    raise TransformError(f"{step} stands after the callable {batch[-1]!r}")
                tail.append(step)
            elif callable(step):
                batch.append(step)
            else:
                raise TransformError(f"{step!r} is no transform and can't be called")
    compiled = Compiled(tuple(geometry), tuple(tail), tuple(batch))
    compiled.native()  # impossible chains fail here, not in the first batch
    return compiled


def affine(tail: Sequence[Pointwise], channels: int) -> tuple[list[float], list[float]] | None:
    """`tail` as float32 x * scale + bias on uint8 pixels, one (scale, bias) a channel.

    None where it is more than that, or less (empty).

    Raises:
        TransformError: Normalize has another number of channels.
    """
    if not tail:
        return None
    scale, bias = np.ones(channels), np.zeros(channels)
    is_float = False
    for step in tail:
        if isinstance(step, ToDtype):
            if step.dtype != "float32":
                return None
            if step.scale and not is_float:
                scale, bias = scale / 255.0, bias / 255.0
        else:
            if len(step.mean) not in (1, channels):
                raise TransformError(f"{step} has {len(step.mean)} channels, the images {channels}")
            if not is_float:
                scale, bias = scale / 255.0, bias / 255.0
            std = np.asarray(step.std)
            scale, bias = scale / std, (bias - np.asarray(step.mean)) / std
        is_float = True
    return scale.tolist(), bias.tolist()


class Augmentation(NamedTuple):
    """What the geometric part does to one image, in pixels of the upright source.

    The crop (y, x, height, width) is resampled to (resized_height, resized_width); of that the
    window (y, x, height, width) is kept, zeros where it overhangs; then it is flipped.
    """

    crop: tuple[int, int, int, int]
    resized: tuple[int, int]
    window: tuple[int, int, int, int]
    flip_horizontal: bool
    flip_vertical: bool


def augmentation(
    compiled: Compiled,
    seed: int,
    epoch: int,
    rows: npt.ArrayLike,
    heights: npt.ArrayLike,
    widths: npt.ArrayLike,
) -> list[Augmentation]:
    """The parameters that the engine draws for rows of an epoch, without decoding anything.

    Args:
        seed, epoch: of the loader.
        rows: global row numbers, int64 (n,).
        heights, widths: of the upright images in pixels, int32 (n,).
    """
    rows = np.ascontiguousarray(rows, np.int64)
    out = np.empty((len(rows), 12), np.int32)
    compiled.native().plans(
        seed & 0xFFFFFFFFFFFFFFFF,
        epoch,
        rows,
        np.ascontiguousarray(heights, np.int32),
        np.ascontiguousarray(widths, np.int32),
        out,
    )
    return [
        Augmentation(
            (v[0], v[1], v[2], v[3]),
            (v[4], v[5]),
            (v[6], v[7], v[8], v[9]),
            bool(v[10]),
            bool(v[11]),
        )
        for v in out.tolist()
    ]


def from_torchvision(transform: object) -> list[Any] | None:
    """A torchvision transform (v1 or v2) as a list of ours; None if it is not one we know.

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


def _from_compose(compose: Any) -> list[Any] | None:
    steps: list[Any] = []
    for transform in compose.transforms:
        known = from_torchvision(transform)
        if known is None:
            return None
        steps += known
    return steps


def _size(size: Any) -> Size:
    """torchvision keeps sizes as an int or a list of one or two."""
    if isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else (int(size[0]), int(size[1]))


def _antialias(transform: Any) -> bool:
    # None was the default for a while; on Pillow images the filter is always antialiased.
    return getattr(transform, "antialias", True) is not False


def _from_resize(t: Any) -> list[Any]:
    name = _filter_name(t.interpolation, "Resize")
    return [Resize(_size(t.size), name, t.max_size, _antialias(t))]


def _from_random_resized_crop(t: Any) -> list[Any]:
    name = _filter_name(t.interpolation, "RandomResizedCrop")
    low, high = t.scale
    narrow, wide = t.ratio
    return [RandomResizedCrop(_size(t.size), (low, high), (narrow, wide), name, _antialias(t))]


def _from_random_crop(t: Any) -> list[Any] | None:
    padding = 0 if t.padding is None else t.padding
    plain = isinstance(padding, int) and not t.pad_if_needed and t.fill in (0, None)
    return [RandomCrop(_size(t.size), padding)] if plain and t.padding_mode == "constant" else None


def _from_to_dtype(t: Any) -> list[Any] | None:
    return None if isinstance(t.dtype, dict) else [ToDtype(t.dtype, bool(t.scale))]


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
    "ConvertImageDtype": lambda t: [ToDtype(t.dtype, scale=True)],
    "Normalize": lambda t: [Normalize(list(t.mean), list(t.std))],
}
