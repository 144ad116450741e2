"""Transforms have torchvision's parameters and meaning, and their draws can be asked for."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastio import TransformError
from fastio import transforms as T
from fastio.transforms.compiled import on_whole_batch


def draws(
    steps: list[Any], count: int = 1000, height: int = 375, width: int = 500, **key: int
) -> list[T.Augmentation]:
    key = {"seed": 0, "epoch": 0} | key
    rows = np.arange(count)
    return T.augmentation(
        T.compile(steps), **key, rows=rows, heights=[height] * count, widths=[width] * count
    )


# Draws

# (y, x, height, width) and flip of the first three rows with seed 11 in epoch 5.
GOLDEN = [((8, 2, 366, 381), True), ((46, 155, 199, 211), False), ((32, 219, 163, 173), True)]


def test_a_draw_is_fixed_for_ever() -> None:
    """Written down when they were first made: another version gives the same crops."""
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    found = draws(steps, 3, seed=11, epoch=5)
    assert [(d.crop, d.flip_horizontal) for d in found] == GOLDEN


def test_a_draw_depends_on_seed_epoch_and_row_alone() -> None:
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    base = draws(steps, 50)
    assert draws(steps, 50) == base
    assert draws(steps, 20) == base[:20]
    assert draws(steps, 50, seed=1) != base
    assert draws(steps, 50, epoch=1) != base


def reference_box(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params with its default scale and ratio."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    raise AssertionError("no crop fits")


def largest_difference(ours: Any, theirs: Any) -> float:
    """Of two empirical distribution functions: Kolmogorov and Smirnov's statistic."""
    both = np.concatenate([ours, theirs])
    shares = [np.searchsorted(np.sort(one), both, "right") / len(one) for one in (ours, theirs)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (100, 90)])
def test_random_resized_crops_have_torchvisions_distribution(height: int, width: int) -> None:
    """By Kolmogorov and Smirnov's test at 0.1%, of places, sizes, shapes and middles."""
    count = 20_000
    rng = random.Random(0)
    expected = np.array([reference_box(rng, height, width) for _ in range(count)], float)
    drawn = draws([T.RandomResizedCrop(64), T.RandomHorizontalFlip()], count, height, width)
    found = np.array([d.crop for d in drawn], float)
    for measure in (
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 3] / box[:, 2],
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: 2 * box[:, 0] + box[:, 2],
        lambda box: 2 * box[:, 1] + box[:, 3],
    ):
        ours, theirs = measure(found), measure(expected)
        assert largest_difference(ours, theirs) < 1.95 * math.sqrt(2 / count)
    areas = found[:, 2] * found[:, 3]
    flipped = np.array([d.flip_horizontal for d in drawn])
    assert largest_difference(areas[flipped], areas[~flipped]) < 1.95 * math.sqrt(4 / count)
    assert (found[:, :2] >= 0).all()
    assert (found[:, 0] + found[:, 2] <= height).all()
    assert (found[:, 1] + found[:, 3] <= width).all()


def test_crops_reach_every_corner() -> None:
    found = draws([T.RandomResizedCrop(224)], 5000)
    ends = {(d.crop[0] + d.crop[2], d.crop[1] + d.crop[3]) for d in found}
    assert min(d.crop[0] for d in found) == 0
    assert min(d.crop[1] for d in found) == 0
    assert max(y for y, _ in ends) == 375
    assert max(x for _, x in ends) == 500


def test_an_image_too_narrow_for_any_crop_is_cropped_in_the_middle() -> None:
    (drawn,) = draws([T.RandomResizedCrop(8, scale=(1.0, 1.0))], 1, height=10, width=1000)
    assert drawn.crop == (0, 493, 10, 13)


@given(height=st.integers(1, 300), width=st.integers(1, 300), row=st.integers(0, 2**48))
def test_every_crop_lies_within_its_image(height: int, width: int, row: int) -> None:
    compiled = T.compile([T.RandomResizedCrop(10)])
    (drawn,) = T.augmentation(compiled, 3, 4, [row], [height], [width])
    y, x, h, w = drawn.crop
    assert 0 <= y <= y + h <= height
    assert 0 <= x <= x + w <= width
    assert min(h, w) >= 1


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_flips_come_with_their_probability(p: float) -> None:
    found = draws([T.RandomHorizontalFlip(p), T.RandomVerticalFlip(p)], 10_000)
    for part in ("flip_horizontal", "flip_vertical"):
        share = np.mean([getattr(d, part) for d in found])
        assert abs(share - p) <= 0.03 * (0 < p < 1)
    together = np.mean([d.flip_horizontal and d.flip_vertical for d in found])
    assert abs(together - p * p) <= 0.03 * (0 < p < 1)


def test_a_crop_after_a_flip_is_taken_from_the_flipped_image() -> None:
    (drawn,) = draws([T.RandomHorizontalFlip(1.0), T.CenterCrop((4, 5))], 1, height=4, width=10)
    assert drawn.window == (0, 3, 4, 5)  # columns 2 to 6 of the mirrored image


def test_resize_of_one_number_sets_the_shorter_edge() -> None:
    assert draws([T.Resize(256)], 1, height=375, width=500)[0].resized == (256, 341)
    assert draws([T.Resize(256)], 1, height=500, width=375)[0].resized == (341, 256)
    assert draws([T.Resize(256)], 1, height=99, width=99)[0].resized == (256, 256)


def test_resize_respects_max_size() -> None:
    found = draws([T.Resize(256, max_size=300)], 1, height=100, width=1000)[0]
    assert found.resized == (30, 300)


def test_center_crop_pads_a_small_image_on_both_sides() -> None:
    (drawn,) = draws([T.CenterCrop(10)], 1, height=7, width=20)
    assert drawn.window == (-1, 5, 10, 10)


def test_random_crop_with_padding_reaches_into_it() -> None:
    found = draws([T.RandomCrop(32, padding=4)], 2000, height=32, width=32)
    assert {d.window[0] for d in found} == set(range(-4, 5))
    assert {d.window[1] for d in found} == set(range(-4, 5))


# Compiling


def test_a_list_is_taken_apart_in_its_three_parts() -> None:
    def mixup(batch: Any) -> Any:
        return batch

    compiled = T.compile(
        [T.Resize(256), T.CenterCrop(224), T.ToDtype("float32", scale=True), T.OnBatch(mixup)]
    )
    assert compiled.steps == (T.Resize(256), T.CenterCrop(224))
    assert compiled.tail == (T.ToDtype("float32", scale=True),)
    assert compiled.batch == (mixup,)


@pytest.mark.parametrize(
    ("steps", "size"),
    [
        ([], None),
        ([T.RandomHorizontalFlip()], None),
        ([T.Resize(256)], None),
        ([T.Resize((8, 9))], (8, 9)),
        ([T.Resize(256), T.CenterCrop(224)], (224, 224)),
        ([T.RandomResizedCrop((3, 4)), T.RandomHorizontalFlip()], (3, 4)),
        ([T.RandomCrop([7])], (7, 7)),
        ([T.CenterCrop(9), T.Resize(4)], None),
    ],
)
def test_the_size_is_known_when_it_does_not_depend_on_the_image(steps: Any, size: Any) -> None:
    assert T.compile(steps).size == size


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([T.ToDtype("float32"), T.Resize(8)], "operations on pixels first"),
        ([T.Normalize([0], [1]), T.ColorJitter(0.4)], "operations on pixels first"),
        ([T.OnBatch(abs), T.CenterCrop(8)], "put OnBatch last"),
        ([T.OnBatch(abs), T.Normalize([0], [1])], r"after OnBatch\(abs\)"),
        (["flip"], "is neither a transform"),
        ([None], "is neither a transform"),
        ([T.Resize], r"Resize is a class: give an object, as in Resize\(...\)"),
        ([functools.partial], r"partial is a class: give an object, as in partial\(...\)"),
        ([torch.nn.Identity], r"Identity is a class: give an object, as in Identity\(...\)"),
    ],
)
def test_an_impossible_list_is_an_error(steps: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        T.compile(steps)


def test_a_class_whose_objects_are_no_transforms_is_a_function() -> None:
    class Record:
        def __init__(self, batch: Any) -> None:
            self.batch = batch

    for function in (float, dict, Record):
        (step,) = T.compile([function]).per_sample
        assert step == T.PerSample(function)
        assert on_whole_batch([function, T.OnBatch(function)]) == (function, function)
    for refused in (T.Resize, T.Normalize, T.ColorJitter, T.Mixup, T.OnBatch, T.PerSample):
        with pytest.raises(TransformError, match="is a class"):
            on_whole_batch([refused])


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Resize(0),
        lambda: T.Resize(70_000),
        lambda: T.Resize(1.5),
        lambda: T.Resize((1, 2, 3)),
        lambda: T.Resize((4, 4), max_size=8),
        lambda: T.Resize(256, max_size=256),
        lambda: T.Resize(4, interpolation="lanczos"),
        lambda: T.RandomResizedCrop(4, scale=(0.5, 0.1)),
        lambda: T.RandomResizedCrop(4, scale=(0.5, 1.5)),
        lambda: T.RandomResizedCrop(4, ratio=(0.0, 1.0)),
        lambda: T.RandomHorizontalFlip(1.5),
        lambda: T.RandomVerticalFlip(-0.1),
        lambda: T.RandomCrop(4, padding=-1),
        lambda: T.Normalize([0.5], [0.5, 0.5]),
        lambda: T.Normalize([0.5], [0.0]),
        lambda: T.Normalize([], []),
        lambda: T.ToDtype("int12"),
    ],
)
def test_an_impossible_parameter_is_an_error(make: Any) -> None:
    with pytest.raises(TransformError):
        make()


# Values


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([T.ToDtype("float32", scale=True)], lambda x: x / 255),
        ([T.ToDtype("float32")], lambda x: x),
        ([T.Normalize([0.4], [0.2])], lambda x: (x / 255 - 0.4) / 0.2),
        (
            [T.ToDtype("float32", scale=True), T.Normalize([0.4], [0.2])],
            lambda x: (x / 255 - 0.4) / 0.2,
        ),
        ([T.ToDtype("float32"), T.Normalize([100], [50])], lambda x: (x - 100) / 50),
        (
            [T.Normalize([0.4], [0.2]), T.Normalize([1], [2])],
            lambda x: ((x / 255 - 0.4) / 0.2 - 1) / 2,
        ),
    ],
)
def test_the_tail_is_one_multiplication_and_one_addition(tail: Any, expected: Any) -> None:
    found = T.affine(tail, 3)
    assert found is not None
    scale, bias = np.array(found)
    pixels = np.arange(256)[:, None]
    np.testing.assert_allclose(pixels * scale + bias, expected(pixels) + np.zeros(3), atol=1e-12)


def test_a_tail_that_is_more_or_less_than_that_is_left_alone() -> None:
    assert T.affine([], 3) is None
    assert T.affine([T.ToDtype("float16", scale=True)], 3) is None


def test_normalize_of_other_channels_is_an_error() -> None:
    with pytest.raises(TransformError, match="2 channels, but the images have 3"):
        T.affine([T.Normalize([0, 0], [1, 1])], 3)


# torchvision's objects, without torchvision


def stand_in(
    name: str, module: str = "torchvision.transforms.v2._geometry", **attributes: Any
) -> Any:
    return type(name, (), {"__module__": module, **attributes})()


class Mode:
    value = "bilinear"


def test_torchvision_objects_are_recognised_by_name() -> None:
    crop = stand_in(
        "RandomResizedCrop",
        size=[224, 224],
        scale=(0.1, 1),
        ratio=(0.5, 2),
        interpolation=Mode,
        antialias=True,
    )
    flip = stand_in("RandomHorizontalFlip", p=0.25)
    norm = stand_in("Normalize", mean=[0.5] * 3, std=[0.5] * 3)
    chain = stand_in("Compose", transforms=[crop, flip, stand_in("ToTensor"), norm])
    assert T.from_torchvision(chain) == [
        T.RandomResizedCrop((224, 224), (0.1, 1), (0.5, 2)),
        T.RandomHorizontalFlip(0.25),
        T.ToDtype("float32", scale=True),
        T.Normalize([0.5] * 3, [0.5] * 3),
    ]
    assert T.compile([chain]).size == (224, 224)


def test_pil_images_of_a_pipeline_are_always_antialiased_as_by_torchvision() -> None:
    sharp: dict[str, Any] = {
        "size": [4],
        "max_size": None,
        "interpolation": Mode,
        "antialias": False,
    }
    resize = stand_in("Resize", **sharp)
    of_pillow = stand_in("Compose", transforms=[resize, stand_in("PILToTensor")])
    assert T.from_pipeline(of_pillow) == [T.Resize(4)]
    of_tensors = stand_in("Compose", transforms=[stand_in("PILToTensor"), resize])
    assert T.from_pipeline(of_tensors) == [T.Resize(4, antialias=False)]


def test_to_uint8_before_a_crop_as_in_torchvisions_recipes_is_left_out() -> None:
    crop, floats = T.RandomResizedCrop(8), T.ToDtype("float32", scale=True)
    compiled = T.compile([T.ToDtype("uint8", scale=True), crop, floats])
    assert compiled == T.Compiled((crop,), (floats,))
    with pytest.raises(TransformError, match="comes after"):
        T.compile([floats, T.ToDtype("uint8", scale=True), crop])


@pytest.mark.parametrize(
    "transform",
    [
        stand_in("ColorJitter"),
        stand_in(
            "Resize", size=4, max_size=None, interpolation=type("I", (), {"value": "lanczos"})
        ),
        stand_in("RandomCrop", size=4, padding=None, pad_if_needed=True, fill=0),
        stand_in("Compose", transforms=[stand_in("ToTensor"), stand_in("ColorJitter")]),
        stand_in("Compose", transforms=[lambda x: x]),
        stand_in("ToDtype", dtype={"image": "float32"}, scale=True),
        stand_in("Resize", "somewhere.else", size=4),
        lambda x: x,
    ],
)
def test_what_would_not_be_the_same_is_not_recognised(transform: Any) -> None:
    assert T.from_torchvision(transform) is None
