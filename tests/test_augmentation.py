"""Loaders run operations on pixels: from every kind of storage, in every layout, exactly keyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

import fastio
from fastio import Loader
from fastio.transforms import RGB
from tests.pictures import save
from tests.support import import_torchvision

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
COLOURS = [
    fastio.ColorJitter(0.4, 0.4, 0.4, 0.1), fastio.RandomGrayscale(0.2), fastio.GaussianBlur(5),
]  # fmt: skip
RECIPE = [fastio.RandomResizedCrop(24), *COLOURS, fastio.RandAugment(), fastio.RandomErasing(0.5)]


def picture(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(x / (5 + c) + seed) * np.cos(y / (7 + seed)) for c in range(3)]
    noise = rng.normal(0, 8, (height, width, 3))
    return np.clip(np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of several sizes: RGB and gray JPEGs, and PNGs, which Pillow decodes."""
    root: Path = tmp_path_factory.mktemp("augmentation") / "photos"
    for row in range(24):
        image = Image.fromarray(picture(row, 40 + row, 64 - row))
        place = root / f"class {row % 2}"
        place.mkdir(parents=True, exist_ok=True)
        if row % 4 == 3:
            image.save(place / f"{row:02}.png")
        else:
            (image.convert("L") if row % 4 == 2 else image).save(
                place / f"{row:02}.jpg", quality=95
            )
    return root


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fastio.pack(folder, folder.parent / "packed")
    return folder.parent / "packed"


def epoch(source: Any, steps: Any, batch_size: int = 5, **options: Any) -> list[torch.Tensor]:
    """The images of an epoch."""
    options = {"shuffle": True, "seed": 3} | options
    with Loader(source, batch_size, transforms=steps, **options) as loader:
        return [image for images, _ in loader for image in images]


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


@pytest.mark.parametrize("kind", ["folder", "packed"])
def test_augmentations_depend_on_seed_epoch_and_row_alone(
    folder: Path, packed: Path, kind: str
) -> None:
    source = folder if kind == "folder" else packed
    first = epoch(source, RECIPE)
    assert equal(first, epoch(source, RECIPE, num_workers=3))
    assert equal(first, epoch(source, RECIPE, batch_size=7))
    assert not equal(first, epoch(source, RECIPE, seed=4))
    with Loader(source, 5, shuffle=True, seed=3, transforms=RECIPE) as loader:
        before = [image for images, _ in loader for image in images]
        after = [image for images, _ in loader for image in images]
    assert equal(first, before)
    assert not any(torch.equal(image, other) for image in after for other in before)


def test_augmentations_are_the_same_after_a_resume(packed: Path) -> None:
    with Loader(packed, 5, shuffle=True, seed=3, transforms=RECIPE) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [images for images, _ in batches]
    with Loader(packed, 5, shuffle=True, seed=3, transforms=RECIPE) as loader:
        loader.load_state_dict(state)
        assert equal(rest, [images for images, _ in loader])


@pytest.mark.parametrize("steps", [RECIPE, [fastio.Resize((16, 20)), fastio.Pad(2), *COLOURS]])
@pytest.mark.parametrize("normalised", [False, True])
def test_layouts_hold_the_same_pixels(folder: Path, steps: Any, normalised: bool) -> None:
    steps = [*steps, fastio.Normalize(MEAN, STD)] if normalised else steps
    planes = epoch(folder, steps)
    last = epoch(folder, steps, channels_last=True)
    assert equal(planes, [image.contiguous() for image in last])


def test_normalised_pixels_are_those_of_bytes(folder: Path) -> None:
    pixels = epoch(folder, RECIPE)
    floats = epoch(folder, [*RECIPE, fastio.Normalize(MEAN, STD)])
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    for image, normalised in zip(pixels, floats, strict=True):
        torch.testing.assert_close((image / 255 - mean) / std, normalised, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [0, (1.0, -2.0, 3.0)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_boxes_are_erased_of_normalised_images(
    folder: Path, value: Any, channels_last: bool
) -> None:
    first = [fastio.Resize((20, 24)), fastio.Normalize(MEAN, STD)]
    erasing = fastio.RandomErasing(0.7, value=value)
    whole = epoch(folder, first, shuffle=False, channels_last=channels_last)
    options = {"shuffle": False, "channels_last": channels_last, "seed": 3}
    with Loader(folder, 5, transforms=[*first, erasing], **options) as loader:
        erased = [image for images, _ in loader for image in images]
        told = loader.augmentation(range(24), epoch=0)
    boxes = 0
    for image, other, drawn in zip(whole, erased, told, strict=True):
        image = image.clone()
        for name, (top, left, height, width) in drawn.operations:
            assert name == "erase"
            boxes += 1
            rows, columns = slice(int(top), int(top + height)), slice(int(left), int(left + width))
            values = torch.tensor(value, dtype=torch.float32)
            image[:, rows, columns] = values[:, None, None] if values.ndim else values
        assert torch.equal(image, other)
    assert 8 < boxes < 24


def test_erasing_before_and_after_normalize_and_of_floats(folder: Path) -> None:
    """torchvision's orders: bytes, floats in [0, 1], and normalised floats."""
    size = [fastio.Resize((20, 24))]
    floats = [*size, fastio.ToDtype("float32", scale=True)]
    gray = fastio.RandomErasing(1.0, value=0.5)
    normal = fastio.Normalize(MEAN, STD)
    between = epoch(folder, [*floats, gray, normal])
    values = tuple((0.5 - mean) / std for mean, std in zip(MEAN, STD, strict=True))
    after = epoch(folder, [*floats, normal, fastio.RandomErasing(1.0, value=values)])
    for one, other in zip(between, after, strict=True):
        torch.testing.assert_close(one, other)
    noise = epoch(folder, [*floats, normal, fastio.RandomErasing(1.0, value="random")])
    again = epoch(folder, [*floats, normal, fastio.RandomErasing(1.0, value="random")])
    assert equal(noise, again)
    changed = torch.cat(
        [a[a != b] for a, b in zip(noise, epoch(folder, [*floats, normal]), strict=True)]
    )
    assert abs(float(changed.mean())) < 0.1
    assert abs(float(changed.std()) - 1) < 0.1


def test_images_of_their_own_sizes_are_augmented(folder: Path) -> None:
    with Loader(folder, 4, transforms=COLOURS, seed=1) as loader:
        images, _ = next(iter(loader))
        assert [tuple(image.shape) for image in images] == [
            (3, *size) for size, *_ in [(drawn.size,) for drawn in loader.augmentation(range(4))]
        ]
    with Loader(
        folder, 4, transforms=[fastio.Pad((1, 2, 3, 4)), fastio.RandomInvert(1.0)]
    ) as loader:
        images, _ = next(iter(loader))
    with Loader(folder, 4, transforms=[]) as loader:
        plain, _ = next(iter(loader))
    for image, other in zip(images, plain, strict=True):
        padded = torch.nn.functional.pad(other, (1, 3, 2, 4))
        assert torch.equal(image, 255 - padded)


@pytest.mark.parametrize("kind", ["folder", "packed"])
def test_gray_has_one_channel(folder: Path, packed: Path, kind: str) -> None:
    source = folder if kind == "folder" else packed
    steps = [fastio.Resize((20, 24)), fastio.ColorJitter(0.4), fastio.Grayscale()]
    three = [*steps[:2], fastio.Grayscale(3)]
    for options in ({}, {"channels_last": True}):
        gray = epoch(source, steps, **options)
        assert all(image.shape == (1, 20, 24) for image in gray)
        same = epoch(source, three, **options)
        assert all(torch.equal(a.expand(3, -1, -1), b) for a, b in zip(gray, same, strict=True))
    floats = epoch(source, [*steps, fastio.Normalize([0.5], [0.25])])
    for image, normalised in zip(epoch(source, steps), floats, strict=True):
        torch.testing.assert_close((image / 255 - 0.5) / 0.25, normalised, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["png", "raw"])
def test_gray_images_get_three_channels(tmp_path: Path, kind: str) -> None:
    pixels = np.random.default_rng(6).integers(0, 256, (5, 9, 7, 1), np.uint8)
    schema = fastio.Schema({"image": fastio.Image("L")})
    with fastio.Writer(tmp_path / "gray", schema) as writer:
        for image in pixels:
            file = save(Image.fromarray(image[..., 0]), "PNG")
            writer.write({"image": file if kind == "png" else image})
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    for steps in ([fastio.Grayscale(3)], [fastio.Grayscale(), fastio.Grayscale(3)]):
        with Loader(tmp_path / "gray", 5, transforms=steps) as loader:
            (batch,) = loader
        assert torch.equal(batch["image"], expected.expand(-1, 3, -1, -1))


def test_gray_becomes_three_channels_again(folder: Path) -> None:
    three = epoch(folder, [fastio.Resize((8, 8)), fastio.Grayscale(3)])
    again = epoch(folder, [fastio.Resize((8, 8)), fastio.Grayscale(), RGB()])
    assert all(torch.equal(a, b) for a, b in zip(three, again, strict=True))


def test_an_image_folder_with_a_recipe_runs_natively(folder: Path) -> None:
    torchvision = import_torchvision()
    v2 = torchvision.transforms.v2
    recipe = v2.Compose(
        [
            v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(),
            v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
            v2.RandomErasing(0.1),
        ]
    )  # fmt: skip
    dataset = torchvision.datasets.ImageFolder(folder, transform=recipe)
    with Loader(dataset, 8, shuffle=True, seed=0) as loader:
        images, labels = next(iter(loader))
        assert loader.stats().path == "native"
    assert images.shape == (8, 3, 24, 24)
    assert images.dtype == torch.float32
    assert set(labels.tolist()) <= {0, 1}


def test_an_impossible_size_is_an_error_of_its_row(tmp_path: Path) -> None:
    for row, size in enumerate([(40, 40), (4, 40), (40, 40)]):
        place = tmp_path / "a"
        place.mkdir(exist_ok=True)
        Image.new("RGB", size).save(place / f"{row}.jpg")
    with (
        Loader(tmp_path, 3, transforms=[fastio.GaussianBlur(9)]) as loader,
        pytest.raises(fastio.ImageError, match=r"1\.jpg.*GaussianBlur's kernel is too large"),
    ):
        next(iter(loader))
    with Loader(tmp_path, 3, transforms=[fastio.GaussianBlur(9)], on_error="skip") as loader:
        assert len(next(iter(loader))[0]) == 2


def test_time_of_augmentations_is_counted(packed: Path) -> None:
    with Loader(packed, 5, transforms=RECIPE) as loader:
        list(loader)
        assert loader.stats().augment_s > 0
    with Loader(packed, 5, transforms=[fastio.Resize((9, 9))]) as loader:
        list(loader)
        assert loader.stats().augment_s == 0


def test_operations_that_are_not_drawn_cost_nothing(packed: Path) -> None:
    never = [
        fastio.RandomApply([fastio.ColorJitter(0.4), fastio.GaussianBlur(5)], 0.0),
        fastio.RandomGrayscale(0.0), fastio.RandomPerspective(p=0.0), fastio.RandomErasing(0.0),
    ]  # fmt: skip
    crop = [fastio.RandomResizedCrop(24)]
    plain = epoch(packed, crop)
    with Loader(packed, 5, shuffle=True, seed=3, transforms=[*crop, *never]) as loader:
        assert equal(plain, [image for images, _ in loader for image in images])
        assert loader.stats().augment_s == 0
