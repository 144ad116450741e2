"""Tables of operations and strengths from which policies such as RandAugment draw.

The strengths are those of torchvision's transforms of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastio import _native


@dataclass(frozen=True)
class Operation:
    """An operation of a policy.

    Attributes:
        name: name of the native operation.
        strengths: strengths to choose from; empty if it has none.
        signed: whether the strength is negated with a probability of a half.
        place: position of the strength among the numbers of an affine transform; None for others.
        unit: "width" or "height" if strengths are fractions of it.
    """

    name: str
    strengths: Sequence[float] = ()
    signed: bool = False
    place: int | None = None
    unit: str = "one"

    def node(
        self, values: Sequence[float], fill: tuple[float, float, float] | None, bilinear: bool
    ) -> _native.Augment:
        """Returns the operation for the native code, its strength drawn from `values`."""
        if self.place is None:
            numbers = []
            if values:
                offset = 1.0 if self.signed else 0.0  # factors are 1 plus or minus the strength
                numbers = [_native.Spread(list(values), sign=self.signed, offset=offset)]
            return _native.Augment.op(self.name, numbers)
        # torchvision truncates translations to whole pixels.
        whole = "cut" if self.place in (_MOVE_X, _MOVE_Y) else "no"
        strength = _native.Spread(list(values), sign=True, unit=self.unit, whole=whole)
        numbers = [_native.Spread([value]) for value in (0.0, 0.0, 0.0, 1.0, 0.0, 0.0)]
        numbers[self.place] = strength
        shears = self.place in (_SHEAR_X, _SHEAR_Y)  # around the top left corner
        middle = -0.5 if shears else 0.0
        numbers += [_native.Spread([middle], unit=unit) for unit in ("width", "height")]
        return _native.Augment.op(self.name, numbers, fill, bilinear)


Space = Mapping[str, Operation | None]
_ANGLE, _MOVE_X, _MOVE_Y, _SHEAR_X, _SHEAR_Y = 0, 1, 2, 4, 5


def _steps(low: float, high: float, bins: int) -> list[float]:
    # In single floats, as torch.linspace computes them: whole numbers are cut off later.
    return [float(value) for value in np.linspace(low, high, bins, dtype=np.float32)]


def _posterize(bins: int, most: int, lost: int) -> list[float]:
    steps = np.arange(bins, dtype=np.float32) / np.float32((bins - 1) / lost)
    return [float(value) for value in np.round(most - steps)]


def _space(
    bins: int,
    shear: float,
    move: float,
    fraction: bool,
    angle: float,
    factor: float,
    bits: list[float],
) -> dict[str, Operation | None]:
    degrees = [float(np.degrees(np.arctan(value))) for value in _steps(0.0, shear, bins)]
    moves, factors = _steps(0.0, move, bins), _steps(0.0, factor, bins)
    width, height = ("width", "height") if fraction else ("one", "one")
    return {
        "Identity": None,
        "ShearX": Operation("affine", degrees, True, _SHEAR_X),
        "ShearY": Operation("affine", degrees, True, _SHEAR_Y),
        "TranslateX": Operation("affine", moves, True, _MOVE_X, width),
        "TranslateY": Operation("affine", moves, True, _MOVE_Y, height),
        "Rotate": Operation("affine", _steps(0.0, angle, bins), True, _ANGLE),
        "Brightness": Operation("brightness", factors, True),
        "Color": Operation("saturation", factors, True),
        "Contrast": Operation("contrast", factors, True),
        "Sharpness": Operation("sharpness", factors, True),
        "Posterize": Operation("posterize", bits),
        "Solarize": Operation("solarize", [255 * value for value in _steps(1.0, 0.0, bins)]),
        "AutoContrast": Operation("autocontrast"),
        "Equalize": Operation("equalize"),
    }


def rand_space(bins: int) -> Space:
    """Returns the operations of RandAugment and AutoAugment by name, with `bins` strengths each."""
    return _space(bins, 0.3, 150 / 331, True, 30.0, 0.9, _posterize(bins, 8, 4))


def auto_space() -> Space:
    """Returns the operations of AutoAugment's policies by name, with ten strengths each."""
    return {**rand_space(10), "Invert": Operation("invert")}


def wide_space(bins: int) -> Space:
    """Returns the operations of TrivialAugmentWide by name, with `bins` strengths each."""
    return _space(bins, 0.99, 32.0, False, 135.0, 0.99, _posterize(bins, 8, 6))


def mix_space(all_ops: bool, severity: int) -> Space:
    """Returns the operations of AugMix by name, with the `severity` weakest of ten strengths."""
    space = _space(10, 0.3, 1 / 3, True, 30.0, 0.9, _posterize(10, 4, 4))
    colours = ("Brightness", "Color", "Contrast", "Sharpness")
    left_out = ("Identity",) if all_ops else ("Identity", *colours)
    found: dict[str, Operation | None] = {}
    for name, operation in space.items():
        if operation is not None and name not in left_out:
            found[name] = replace(operation, strengths=operation.strengths[:severity])
    return found


Policy = tuple[tuple[str, float, int | None], ...]


def _policies(text: str) -> tuple[Policy, ...]:
    """Returns the sub-policies of a table with two operations per line."""
    found = []
    for line in text.strip().splitlines():
        parts = [part.split() for part in line.split(";")]
        found.append(
            tuple((name, float(p), int(rest[0]) if rest else None) for name, p, *rest in parts)
        )
    return tuple(found)


# From the appendix of Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data", 2018:
# an operation, its probability, and the number of its strength if it has one.
AUTO_AUGMENT_POLICIES: Mapping[str, tuple[Policy, ...]] = {
    "imagenet": _policies(
        """
        Posterize 0.4 8; Rotate 0.6 9
        Solarize 0.6 5; AutoContrast 0.6
        Equalize 0.8; Equalize 0.6
        Posterize 0.6 7; Posterize 0.6 6
        Equalize 0.4; Solarize 0.2 4
        Equalize 0.4; Rotate 0.8 8
        Solarize 0.6 3; Equalize 0.6
        Posterize 0.8 5; Equalize 1
        Rotate 0.2 3; Solarize 0.6 8
        Equalize 0.6; Posterize 0.4 6
        Rotate 0.8 8; Color 0.4 0
        Rotate 0.4 9; Equalize 0.6
        Equalize 0; Equalize 0.8
        Invert 0.6; Equalize 1
        Color 0.6 4; Contrast 1 8
        Rotate 0.8 8; Color 1 2
        Color 0.8 8; Solarize 0.8 7
        Sharpness 0.4 7; Invert 0.6
        ShearX 0.6 5; Equalize 1
        Color 0.4 0; Equalize 0.6
        Equalize 0.4; Solarize 0.2 4
        Solarize 0.6 5; AutoContrast 0.6
        Invert 0.6; Equalize 1
        Color 0.6 4; Contrast 1 8
        Equalize 0.8; Equalize 0.6
        """
    ),
    "cifar10": _policies(
        """
        Invert 0.1; Contrast 0.2 6
        Rotate 0.7 2; TranslateX 0.3 9
        Sharpness 0.8 1; Sharpness 0.9 3
        ShearY 0.5 8; TranslateY 0.7 9
        AutoContrast 0.5; Equalize 0.9
        ShearY 0.2 7; Posterize 0.3 7
        Color 0.4 3; Brightness 0.6 7
        Sharpness 0.3 9; Brightness 0.7 9
        Equalize 0.6; Equalize 0.5
        Contrast 0.6 7; Sharpness 0.6 5
        Color 0.7 7; TranslateX 0.5 8
        Equalize 0.3; AutoContrast 0.4
        TranslateY 0.4 3; Sharpness 0.2 6
        Brightness 0.9 6; Color 0.2 8
        Solarize 0.5 2; Invert 0
        Equalize 0.2; AutoContrast 0.6
        Equalize 0.2; Equalize 0.6
        Color 0.9 9; Equalize 0.6
        AutoContrast 0.8; Solarize 0.2 8
        Brightness 0.1 3; Color 0.7 0
        Solarize 0.4 5; AutoContrast 0.9
        TranslateY 0.9 9; TranslateY 0.7 9
        AutoContrast 0.9; Solarize 0.8 3
        Equalize 0.8; Invert 0.1
        TranslateY 0.7 9; AutoContrast 0.9
        """
    ),
    "svhn": _policies(
        """
        ShearX 0.9 4; Invert 0.2
        ShearY 0.9 8; Invert 0.7
        Equalize 0.6; Solarize 0.6 6
        Invert 0.9; Equalize 0.6
        Equalize 0.6; Rotate 0.9 3
        ShearX 0.9 4; AutoContrast 0.8
        ShearY 0.9 8; Invert 0.4
        ShearY 0.9 5; Solarize 0.2 6
        Invert 0.9; AutoContrast 0.8
        Equalize 0.6; Rotate 0.9 3
        ShearX 0.9 4; Solarize 0.3 3
        ShearY 0.8 8; Invert 0.7
        Equalize 0.9; TranslateY 0.6 6
        Invert 0.9; Equalize 0.6
        Contrast 0.3 3; Rotate 0.8 4
        Invert 0.8; TranslateY 0 2
        ShearY 0.7 6; Solarize 0.4 8
        Invert 0.6; Rotate 0.8 4
        ShearY 0.3 7; TranslateX 0.9 3
        ShearX 0.1 6; Invert 0.6
        Solarize 0.7 2; TranslateY 0.6 7
        ShearY 0.8 4; Invert 0.8
        ShearX 0.7 9; TranslateY 0.8 3
        ShearY 0.8 5; AutoContrast 0.7
        ShearX 0.7 2; Invert 0.1
        """
    ),
}
