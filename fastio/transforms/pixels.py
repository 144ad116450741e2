"""Operations on the pixels of single samples, which the engine's threads run.

Each class has torchvision's name, parameters and meaning (`torchvision.transforms.v2` on uint8
tensors), and describes itself to the native code. Random numbers are a function of (seed, epoch,
row, occurrence of the row, place in the list).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastio import _native
from fastio.transforms.pixel_checks import (
    Fill,
    PixelTransform,
    Range,
    applied,
    around,
    bad,
    constant,
    fill_of,
    increasing,
    is_bilinear,
    is_number,
    numbers_of,
    uniform,
)
from fastio.transforms.specs import pair

_PAD_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True)
class ColorJitter(PixelTransform):
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Args:
        brightness, contrast, saturation: the factor is drawn from [max(0, 1 - value), 1 + value],
            or from a range (low, high); 0 or None leaves it unchanged.
        hue: hues are turned by a part of the circle drawn from [-hue, hue], or from (low, high),
            within [-0.5, 0.5].
    """

    brightness: Range | None = 0
    contrast: Range | None = 0
    saturation: Range | None = 0
    hue: Range | None = 0

    def node(self) -> _native.Augment:
        factors = [
            (name, self._range(name, getattr(self, name), 1.0, 0.0, math.inf))
            for name in ("brightness", "contrast", "saturation")
        ]
        factors.append(("hue", self._range("hue", self.hue, 0.0, -0.5, 0.5)))
        ops = [_native.Augment.op(name, [uniform(*r)]) for name, r in factors if r is not None]
        return _native.Augment.order(ops) if ops else _native.Augment.sequence([])

    def _range(
        self, name: str, value: Range | None, middle: float, low: float, high: float
    ) -> tuple[float, float] | None:
        if value is None:
            return None
        if isinstance(value, Sequence):
            found = increasing(self, name, value, low, high)
        elif not is_number(value) or value < 0 or middle + value > high:
            raise bad(self, f"{name} must be a number >= 0 or (low, high), got {value!r}")
        else:
            found = max(low, middle - value), middle + value
        return None if found == (middle, middle) else found


@dataclass(frozen=True)
class Grayscale(PixelTransform):
    """Converts the image to gray.

    Args:
        num_output_channels: 1, or 3 for three equal channels. Inside of `RandomApply` and its like,
            only 3 is possible, and gray images keep one channel: put `RGB` before it.
    """

    num_output_channels: int = 1

    def node(self) -> _native.Augment:
        if self.num_output_channels not in (1, 3):
            raise bad(self, f"num_output_channels must be 1 or 3, got {self.num_output_channels!r}")
        return _native.Augment.op("grayscale", [])


@dataclass(frozen=True)
class RGB(PixelTransform):
    """Gives gray images three equal channels, and leaves images in colour as they are."""

    def node(self) -> _native.Augment:
        return _native.Augment.sequence([])


@dataclass(frozen=True)
class RandomGrayscale(PixelTransform):
    """Converts the image to gray with probability p, and keeps its number of channels."""

    p: float = 0.1

    def node(self) -> _native.Augment:
        return applied(self, self.p, _native.Augment.op("grayscale", []))


@dataclass(frozen=True)
class GaussianBlur(PixelTransform):
    """Blurs the image with a Gaussian kernel; edges are mirrored.

    Args:
        kernel_size: size of the kernel in pixels, odd, an int or (width, height).
        sigma: standard deviation in pixels, a number or the range (low, high) it is drawn from.
    """

    kernel_size: int | Sequence[int]
    sigma: Range = (0.1, 2.0)

    def node(self) -> _native.Augment:
        columns, rows = pair(
            self.kernel_size if isinstance(self.kernel_size, int) else tuple(self.kernel_size),
            "GaussianBlur",
        )
        if columns % 2 == 0 or rows % 2 == 0 or max(columns, rows) > 1023:
            raise bad(self, f"kernel_size must be odd and below 1024, got {self.kernel_size!r}")
        given = self.sigma if isinstance(self.sigma, Sequence) else (self.sigma, self.sigma)
        low, high = increasing(self, "sigma", given, 0.0, math.inf)
        if low <= 0:
            raise bad(self, f"sigma must be positive, got {self.sigma!r}")
        return _native.Augment.op("gaussian_blur", [*constant(columns, rows), uniform(low, high)])


@dataclass(frozen=True)
class RandomSolarize(PixelTransform):
    """Inverts all values >= threshold (of [0, 255]) with probability p."""

    threshold: float
    p: float = 0.5

    def node(self) -> _native.Augment:
        if not is_number(self.threshold):
            raise bad(self, f"threshold must be a number, got {self.threshold!r}")
        return applied(self, self.p, _native.Augment.op("solarize", constant(self.threshold)))


@dataclass(frozen=True)
class RandomPosterize(PixelTransform):
    """Keeps the highest `bits` bits of each value, 0 to 8, with probability p."""

    bits: int
    p: float = 0.5

    def node(self) -> _native.Augment:
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise bad(self, f"bits must be an int in [0, 8], got {self.bits!r}")
        return applied(self, self.p, _native.Augment.op("posterize", constant(self.bits)))


@dataclass(frozen=True)
class RandomInvert(PixelTransform):
    """Inverts all values with probability p."""

    p: float = 0.5

    def node(self) -> _native.Augment:
        return applied(self, self.p, _native.Augment.op("invert", []))


@dataclass(frozen=True)
class RandomEqualize(PixelTransform):
    """Equalises the histogram of each channel with probability p."""

    p: float = 0.5

    def node(self) -> _native.Augment:
        return applied(self, self.p, _native.Augment.op("equalize", []))


@dataclass(frozen=True)
class RandomAutocontrast(PixelTransform):
    """Stretches each channel to the full range with probability p."""

    p: float = 0.5

    def node(self) -> _native.Augment:
        return applied(self, self.p, _native.Augment.op("autocontrast", []))


@dataclass(frozen=True)
class RandomAdjustSharpness(PixelTransform):
    """Changes the sharpness with probability p: 0 blurs, 1 changes nothing, 2 sharpens."""

    sharpness_factor: float
    p: float = 0.5

    def node(self) -> _native.Augment:
        factor = self.sharpness_factor
        if not is_number(factor) or factor < 0:
            raise bad(self, f"sharpness_factor must be a number >= 0, got {factor!r}")
        return applied(self, self.p, _native.Augment.op("sharpness", constant(factor)))


@dataclass(frozen=True)
class RandomErasing(PixelTransform):
    """Erases a random rectangle with probability p.

    After `ToDtype` or `Normalize`, `value` is in units of their result, as in torchvision: 0 is the
    mean colour then. The image is then normalised on the CPU.

    Args:
        p: probability.
        scale: range of the rectangle's area as a fraction of the image's area.
        ratio: range of the rectangle's height / width.
        value: a number, one number per channel, or "random" for normally distributed values, which
            needs images that are floats.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | str | Sequence[float] = 0

    def node(self) -> _native.Augment:
        scale = increasing(self, "scale", self.scale, 0.0, 1.0)
        ratio = increasing(self, "ratio", self.ratio, 0.0, math.inf)
        if ratio[0] <= 0:
            raise bad(self, f"ratio must be positive, got {self.ratio!r}")
        noise = self.value == "random"
        given = [0.0] if noise else self.value
        values = numbers_of(
            self, "value", given if isinstance(given, Sequence) else [given], (1, 3)
        )
        fill = values * 3 if len(values) == 1 else values
        box = _native.Augment.op(
            "erase_area",
            [uniform(*scale), uniform(*ratio)],
            (fill[0], fill[1], fill[2]),
            noise=noise,
        )
        return applied(self, self.p, box)

    def normalized(self, mean: Sequence[float], std: Sequence[float]) -> RandomErasing:
        """Returns the same for images that are normalised afterwards."""
        if self.value == "random":
            raise bad(self, "value='random' must come after Normalize")
        given = self.value if isinstance(self.value, Sequence) else [self.value]
        values = [float(value) for value in given] * (3 if len(given) == 1 else 1)
        means = list(mean) * (3 if len(mean) == 1 else 1)
        stds = list(std) * (3 if len(std) == 1 else 1)
        erased = [(v - m) / s for v, m, s in zip(values, means, stds, strict=True)]
        return RandomErasing(self.p, self.scale, self.ratio, tuple(erased))


@dataclass(frozen=True)
class RandomRotation(PixelTransform):
    """Rotates the image by a random angle.

    Args:
        degrees: range of the angle counterclockwise, (low, high) or a number for (-number, number).
        interpolation: "nearest" or "bilinear".
        expand: must be False: the image keeps its size.
        center: centre of the rotation in pixels (x, y) from the top left; None for the middle.
        fill: value outside of the image, one number or one per channel.
    """

    degrees: Range
    interpolation: str = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Fill = 0

    def node(self) -> _native.Augment:
        if self.expand:
            raise bad(
                self, "expand=True gives every image a size of its own, which is not supported"
            )
        low, high = around(self, "degrees", self.degrees)
        # torchvision's affine turns the other way round.
        numbers = [uniform(-high, -low), *constant(0, 0, 1, 0, 0), *_centre(self, self.center)]
        fill, smooth = fill_of(self, self.fill), is_bilinear(self, self.interpolation)
        return _native.Augment.op("affine", numbers, fill, smooth)


def _centre(transform: object, center: Sequence[float] | None) -> list[_native.Spread]:
    """Returns a centre as distances from the image's middle."""
    if center is None:
        return constant(0, 0)
    x, y = numbers_of(transform, "center", center, (2,))
    return [
        _native.Spread([-0.5], unit="width", offset=x),
        _native.Spread([-0.5], unit="height", offset=y),
    ]


@dataclass(frozen=True)
class RandomAffine(PixelTransform):
    """Rotates, moves, scales and shears the image by random amounts.

    Args:
        degrees: range of the angle clockwise, (low, high) or a number for (-number, number).
        translate: greatest shift as a fraction of width and height; None for none.
        scale: range of the scaling factor; None for none.
        shear: range of the angle in degrees of the x axis: a number for (-number, number), (low,
            high), or (low, high, low, high) of x and y axis; None for none.
        interpolation, fill, center: as in `RandomRotation`.
    """

    degrees: Range
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Range | None = None
    interpolation: str = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None

    def node(self) -> _native.Augment:
        numbers = [uniform(*around(self, "degrees", self.degrees)), *self._translate()]
        low, high = (1.0, 1.0)
        if self.scale is not None:
            low, high = increasing(self, "scale", self.scale, 0.0, math.inf)
            if low <= 0:
                raise bad(self, f"scale must be positive, got {self.scale!r}")
        numbers += [uniform(low, high), *self._shear(), *_centre(self, self.center)]
        fill, smooth = fill_of(self, self.fill), is_bilinear(self, self.interpolation)
        return _native.Augment.op("affine", numbers, fill, smooth)

    def _translate(self) -> list[_native.Spread]:
        parts = (0.0, 0.0)
        if self.translate is not None:
            x, y = numbers_of(self, "translate", self.translate, (2,))
            if not (0 <= x <= 1 and 0 <= y <= 1):
                raise bad(self, f"translate must be in [0, 1], got {self.translate!r}")
            parts = x, y
        return [
            _native.Spread([-part, part], range=True, unit=unit, whole="rounded")
            for part, unit in zip(parts, ("width", "height"), strict=True)
        ]

    def _shear(self) -> list[_native.Spread]:
        if self.shear is None:
            return constant(0, 0)
        if isinstance(self.shear, Sequence) and len(self.shear) == 4:
            ranges = [increasing(self, "shear", self.shear[at : at + 2], -90, 90) for at in (0, 2)]
        else:
            ranges = [around(self, "shear", self.shear), (0.0, 0.0)]
        return [uniform(*angles) for angles in ranges]


@dataclass(frozen=True)
class RandomPerspective(PixelTransform):
    """Moves the image's corners by random distances, with probability p.

    Args:
        distortion_scale: greatest distance as a fraction of half the width and height, in [0, 1].
        p: probability.
        interpolation, fill: as in `RandomRotation`.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: Fill = 0

    def node(self) -> _native.Augment:
        if not is_number(self.distortion_scale) or not 0 <= self.distortion_scale <= 1:
            raise bad(self, f"distortion_scale must be in [0, 1], got {self.distortion_scale!r}")
        fill, smooth = fill_of(self, self.fill), is_bilinear(self, self.interpolation)
        corners = _native.Augment.op("corners", constant(self.distortion_scale), fill, smooth)
        return applied(self, self.p, corners)


@dataclass(frozen=True)
class Pad(PixelTransform):
    """Adds pixels on every side.

    Args:
        padding: number of pixels: one number, (left and right, top and bottom), or (left, top,
            right, bottom).
        fill: their value if padding_mode is "constant", one number or one per channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric".
    """

    padding: int | Sequence[int]
    fill: Fill = 0
    padding_mode: str = "constant"

    def sides(self) -> tuple[int, int, int, int]:
        """Returns the pixels added left, top, right and bottom."""
        given = self.padding if isinstance(self.padding, Sequence) else [self.padding]
        sides = [int(side) for side in numbers_of(self, "padding", given, (1, 2, 4))]
        if min(sides) < 0 or max(sides) > 65535:
            raise bad(self, f"padding must be in [0, 65535], got {self.padding!r}")
        left, top, right, bottom = sides * (4 // len(sides))
        return left, top, right, bottom

    def node(self) -> _native.Augment:
        if self.padding_mode not in _PAD_MODES:
            modes = ", ".join(_PAD_MODES)
            raise bad(self, f"padding_mode must be one of {modes}, got {self.padding_mode!r}")
        numbers = constant(*self.sides(), _PAD_MODES.index(self.padding_mode))
        return _native.Augment.op("pad", numbers, fill_of(self, self.fill))
