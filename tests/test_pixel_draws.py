"""Random operations on pixels are drawn as torchvision draws them; wrong parameters are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastio
from fastio.transforms import augmentation, compile, from_torchvision
from tests.support import import_torchvision

# The operations of policies whose strength is a number that both tell.
STRONG = ("brightness", "contrast", "saturation", "sharpness", "posterize", "solarize")


def drawn_by(step: Any, rows: int = 4000, height: int = 60, width: int = 80) -> list[Any]:
    compiled = compile([step])
    numbers = np.arange(rows)
    sizes = np.full(rows, height), np.full(rows, width)
    return [each.operations for each in augmentation(compiled, 5, 1, numbers, *sizes)]


def is_near(count: float, expected: float, variance: float) -> bool:
    """Within five standard deviations."""
    return abs(count - expected) <= 5 * math.sqrt(variance)


def same_distribution(ours: Any, theirs: Any) -> bool:
    """Kolmogorov and Smirnov's test of two samples; one in a million fails by chance."""
    ours, theirs = np.sort(ours), np.sort(theirs)
    every = np.concatenate([ours, theirs])
    parts = [np.searchsorted(each, every, side="right") / len(each) for each in (ours, theirs)]
    limit = math.sqrt(-0.5 * math.log(1e-6 / 2) * (1 / len(ours) + 1 / len(theirs)))
    return float(np.abs(parts[0] - parts[1]).max()) <= limit


def test_operations_of_a_policy_are_equally_likely() -> None:
    drawn = drawn_by(fastio.RandAugment(2, 9), 7000)
    counts: dict[str, int] = {}
    for operations in drawn:
        for name, numbers in operations:
            axis = ""
            if name == "affine":  # rotation, two shears, two shifts
                axis = "".join("x" if number else "-" for number in numbers[:6] if number != 1.0)
            counts[name + axis] = counts.get(name + axis, 0) + 1
    assert len(counts) == 13  # and the identity, of which nothing is told
    for name, count in counts.items():
        assert is_near(count, 1000, 1000 * 13 / 14), name


@pytest.mark.parametrize("wide", [False, True])
def test_strengths_are_torchvisions(wide: bool) -> None:
    transforms = import_torchvision().transforms.v2
    step = fastio.TrivialAugmentWide() if wide else fastio.RandAugment(1, 9)
    policy = transforms.TrivialAugmentWide if wide else transforms.RandAugment
    space = policy._AUGMENTATION_SPACE
    names = {name: name.title() for name in STRONG}
    names["saturation"] = "Color"
    found: dict[str, set[float]] = {}
    for operations in drawn_by(step, 20_000):
        for name, numbers in operations:
            if name in names:
                found.setdefault(name, set()).add(round(numbers[0], 4))
    assert found.keys() == names.keys()
    for name, values in found.items():
        magnitudes, signed = space[names[name]]
        theirs = magnitudes(31, 60, 80)
        theirs = [float(m) for m in (theirs if wide else theirs[9:10])]
        if signed:
            wanted = {round(1 + sign * m, 4) for m in theirs for sign in (1, -1)}
        else:
            wanted = {round(m * (255 if name == "solarize" else 1), 4) for m in theirs}
        assert values == wanted, name


def test_jitter_draws_any_order_and_uniform_factors() -> None:
    orders: dict[tuple[str, ...], int] = {}
    factors: dict[str, list[float]] = {}
    for operations in drawn_by(fastio.ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1), 12_000):
        order = tuple(name for name, _ in operations)
        orders[order] = orders.get(order, 0) + 1
        for name, (value,) in operations:
            factors.setdefault(name, []).append(value)
    assert len(orders) == 24
    assert all(is_near(count, 500, 500 * 23 / 24) for count in orders.values())
    ranges = {
        "brightness": (0.6, 1.4),
        "contrast": (0.7, 1.3),
        "saturation": (0.5, 2.0),
        "hue": (-0.1, 0.1),
    }
    for name, (low, high) in ranges.items():
        assert same_distribution(factors[name], np.linspace(low, high, 100_000)), name


@pytest.mark.parametrize("p", [0.0, 0.2, 0.8, 1.0])
def test_probabilities_are_kept(p: float) -> None:
    rows = 4000
    steps = [
        fastio.RandomGrayscale(p), fastio.RandomApply([fastio.RandomInvert(1.0)], p),
        fastio.RandomSolarize(10, p), fastio.RandomErasing(p), fastio.RandomEqualize(p),
    ]  # fmt: skip
    for step in steps:
        applied = sum(bool(operations) for operations in drawn_by(step, rows))
        assert is_near(applied, rows * p, rows * p * (1 - p)), step


def test_choices_have_their_weights() -> None:
    choice = fastio.RandomChoice([fastio.RandomInvert(1), fastio.RandomEqualize(1)], [1, 3])
    inverted = sum(operations[0][0] == "invert" for operations in drawn_by(choice))
    assert is_near(inverted, 1000, 750)


PARAMETERS = {
    "RandomErasing": (lambda v2: v2.RandomErasing(1.0), lambda p: [p["i"], p["j"], p["h"], p["w"]]),
    "RandomAffine": (
        lambda v2: v2.RandomAffine((-20, 40), (0.1, 0.3), (0.7, 1.9), (-10, 20, -5, 7)),
        lambda p: [p["angle"], *p["translate"], p["scale"], *p["shear"]],
    ),
    "RandomRotation": (lambda v2: v2.RandomRotation((-20, 70)), lambda p: [-p["angle"]]),
    "RandomPerspective": (
        lambda v2: v2.RandomPerspective(0.5, 1.0),
        None,
    ),
    "GaussianBlur": (lambda v2: v2.GaussianBlur(5, (0.3, 2.5)), lambda p: [5, 5, p["sigma"][0]]),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, (_, told) in PARAMETERS.items() if told])
def test_parameters_have_torchvisions_distribution(name: str) -> None:
    v2 = import_torchvision().transforms.v2
    make, told = PARAMETERS[name]
    transform = make(v2)
    (step,) = from_torchvision(transform) or [None]
    ours = np.array([operations[0][1] for operations in drawn_by(step) if operations])
    torch.manual_seed(0)
    image = torch.zeros(3, 60, 80, dtype=torch.uint8)
    assert told is not None
    theirs = np.array([told(transform.make_params([image])) for _ in range(4000)])
    for column in range(theirs.shape[1]):
        assert same_distribution(ours[:, column], theirs[:, column]), column


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_mixing_weights_have_dirichlets_distribution(alpha: float) -> None:
    drawn = drawn_by(fastio.AugMix(alpha=alpha))
    kept = [operations[0][1][0] for operations in drawn]
    rng = np.random.default_rng(0)
    assert same_distribution(kept, rng.beta(alpha, alpha, 50_000))
    first = [
        next(v[0] for name, v in operations if name == "mix_add") / (1 - operations[0][1][0])
        for operations in drawn
        if operations[0][1][0] < 0.999
    ]
    assert same_distribution(first, rng.beta(alpha, 2 * alpha, 50_000))
    depths = [sum(name == "mix_add" for name, _ in operations) for operations in drawn]
    assert set(depths) == {3}


def test_wrong_parameters_are_named() -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: fastio.ColorJitter(-1), "brightness must be"),
        (lambda: fastio.ColorJitter(hue=0.6), "hue must be"),
        (lambda: fastio.ColorJitter(contrast=(2.0, 1.0)), "contrast must be a range"),
        (lambda: fastio.GaussianBlur(4), "odd"),
        (lambda: fastio.GaussianBlur(3, 0), "sigma must be positive"),
        (lambda: fastio.RandomPosterize(9), "bits must be"),
        (lambda: fastio.RandomSolarize(float("nan")), "threshold"),
        (lambda: fastio.RandomInvert(1.5), "p must be"),
        (lambda: fastio.RandomErasing(scale=(0.5, 0.1)), "scale must be a range"),
        (lambda: fastio.RandomErasing(value="noise"), "value must be"),
        (lambda: fastio.RandomRotation(10, expand=True), "expand"),
        (lambda: fastio.RandomRotation(-10), "degrees"),
        (lambda: fastio.RandomAffine(0, interpolation="bicubic"), "interpolation"),
        (lambda: fastio.RandomAffine(0, (2, 0)), "translate"),
        (lambda: fastio.RandomAffine(0, fill=(1, 2)), "fill must be"),
        (lambda: fastio.RandomPerspective(2), "distortion_scale"),
        (lambda: fastio.Pad(-1), "padding must be"),
        (lambda: fastio.Pad(1, padding_mode="wrap"), "padding_mode"),
        (lambda: fastio.RandAugment(magnitude=31), "magnitude"),
        (lambda: fastio.AutoAugment("mnist"), "policy"),
        (lambda: fastio.AugMix(severity=11), "severity"),
        (lambda: fastio.RandomApply([]), "list of transforms"),
        (lambda: fastio.RandomApply([fastio.RandomCrop(3)]), "keep size and channels"),
        (lambda: fastio.RandomChoice([fastio.RandomInvert()], [1, 2]), "weights"),
        (lambda: fastio.Grayscale(2), "num_output_channels"),
    ]
    for make, message in wrong:
        with pytest.raises(fastio.TransformError, match=message):
            make()
