"""What the specifications of operations on pixels share: the native form of their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastio import _native
from fastio.errors import TransformError
from fastio.transforms.specs import check_probability

Range = float | Sequence[float]
Fill = float | Sequence[float] | None
_INTERPOLATIONS = ("nearest", "bilinear")


def constant(*values: float) -> list[_native.Spread]:
    """Returns numbers that are not drawn."""
    return [_native.Spread([float(value)]) for value in values]


def uniform(low: float, high: float) -> _native.Spread:
    """Returns a number that is drawn uniformly from [low, high)."""
    return _native.Spread([float(low), float(high)], range=True)


def bad(transform: object, what: str) -> TransformError:
    return TransformError(f"{type(transform).__name__}: {what}")


def numbers_of(transform: object, name: str, value: object, counts: Sequence[int]) -> list[float]:
    """Returns a sequence of finite numbers of one of the lengths `counts`."""
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(numbers) not in counts or not all(is_number(number) for number in numbers):
        lengths = " or ".join(str(count) for count in counts)
        raise bad(transform, f"{name} must be {lengths} numbers, got {value!r}")
    return [float(number) for number in numbers]


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def increasing(
    transform: object, name: str, value: object, low: float, high: float
) -> tuple[float, float]:
    """Returns a range (begin, end) within [low, high]."""
    begin, end = numbers_of(transform, name, value, (2,))
    if not low <= begin <= end <= high:
        raise bad(
            transform, f"{name} must be a range (low, high) in [{low}, {high}], got {value!r}"
        )
    return begin, end


def around(transform: object, name: str, value: Range) -> tuple[float, float]:
    """Returns angles: one number stands for (-number, number)."""
    if isinstance(value, Sequence):
        return increasing(transform, name, value, -math.inf, math.inf)
    if not is_number(value) or value < 0:
        raise bad(transform, f"{name} must be a number >= 0 or (low, high), got {value!r}")
    return -float(value), float(value)


def fill_of(transform: object, fill: Fill) -> tuple[float, float, float] | None:
    """Returns the fill of three channels, in [0, 255]; None if there is none."""
    if fill is None:
        return None
    values = list(fill) if isinstance(fill, Sequence) else [fill]
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or not all(is_number(value) and 0 <= value <= 255 for value in values):
        raise bad(transform, f"fill must be one number in [0, 255] or three, got {fill!r}")
    return float(values[0]), float(values[1]), float(values[2])


def is_bilinear(transform: object, interpolation: object) -> bool:
    text = str(getattr(interpolation, "value", interpolation))
    if text not in _INTERPOLATIONS:
        raise bad(
            transform, f"interpolation must be 'nearest' or 'bilinear', got {interpolation!r}"
        )
    return text == "bilinear"


class PixelTransform:
    """A specification whose parameters are checked when it is made."""

    def __post_init__(self) -> None:
        self.node()

    def node(self) -> _native.Augment:
        """Returns the operations for the native code.

        Raises:
            TransformError: a parameter is invalid.
        """
        raise NotImplementedError


def applied(transform: object, p: float, *nodes: _native.Augment) -> _native.Augment:
    check_probability(p, type(transform).__name__)
    return _native.Augment.apply(float(p), list(nodes))
