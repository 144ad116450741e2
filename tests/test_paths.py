"""Which path a dataset takes, and that an ImageFolder gives on either what DataLoader gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Subset

import fastio
from fastio import ImageError, Loader
from fastio.runtime.cores import available_cores
from tests.pictures import oriented_jpeg, png
from tests.support import flat, import_torchvision, numbered_folder, told
from tests.torch_support import OwnDataset

ROWS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered_folder(tmp_path_factory.mktemp("data") / "images")


def image_folder(folder: Path, *steps: Any, version: str = "v2", **options: Any) -> Any:
    torchvision = import_torchvision()
    transforms = torchvision.transforms.v2 if version == "v2" else torchvision.transforms
    chain = [getattr(transforms, name)(*arguments) for name, *arguments in steps]
    transform = transforms.Compose(chain) if chain else None
    return torchvision.datasets.ImageFolder(folder, transform=transform, **options)


EVALUATION = [("Resize", 20), ("CenterCrop", 16)]
CHAINS: dict[str, tuple[str, list[Any]]] = {
    "v1": ("v1", [*EVALUATION, ("ToTensor",), ("Normalize", [0.5] * 3, [0.25] * 3)]),
    "v2": (
        "v2",
        [
            ("ToImage",),
            *EVALUATION,
            ("ToDtype", torch.float32, True),
            ("Normalize", [0.5] * 3, [0.25] * 3),
        ],
    ),
    "v2 recipe": (
        "v2",
        [
            ("ToImage",),
            ("ToDtype", torch.uint8, True),
            *EVALUATION,
            ("ToDtype", torch.float32, True),
            ("Normalize", [0.5] * 3, [0.25] * 3),
        ],
    ),
    "v2 bytes": ("v2", [*EVALUATION, ("PILToTensor",)]),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_an_image_folder_takes_the_native_path_to_the_same_batches(
    folder: Path, chain: str
) -> None:
    version, steps = CHAINS[chain]
    dataset = image_folder(folder, *steps, version=version)
    with Loader(dataset, 5) as mine:
        assert mine.stats().path == "native"
        assert mine.dataset is dataset
        assert len(mine) == len(DataLoader(dataset, 5))
        for (images, labels), (wanted, targets) in zip(mine, DataLoader(dataset, 5), strict=True):
            assert (images.shape, images.dtype) == (wanted.shape, wanted.dtype)
            # One level of 255, normalised.
            step = 1.001 if images.dtype == torch.uint8 else 1.001 / 255 / 0.25
            torch.testing.assert_close(images, torch.as_tensor(wanted), rtol=0, atol=step)
            assert torch.equal(labels, targets)
            assert labels.dtype == targets.dtype


def test_the_transforms_of_a_models_weights_take_the_native_path(folder: Path) -> None:
    vision = import_torchvision()
    preset = vision.transforms._presets.ImageClassification(crop_size=16, resize_size=20)
    dataset = vision.datasets.ImageFolder(folder, transform=preset)
    with Loader(dataset, 5) as mine:
        assert mine.path == "native"
        for (images, _), (wanted, _) in zip(mine, DataLoader(dataset, 5), strict=True):
            torch.testing.assert_close(images, wanted, rtol=0, atol=1.001 / 255 / 0.224)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_images_of_an_image_folder_are_not_turned_as_with_torchvision(
    tmp_path: Path, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(oriented_jpeg(orientation, 20, 30))
    (tmp_path / "a" / "1.png").write_bytes(png(20, 30, exif=exif))  # decoded by Pillow
    dataset = image_folder(tmp_path, ("PILToTensor",))
    with Loader(dataset, None) as mine:
        assert mine.path == "native"
        for (image, _), (wanted, _) in zip(mine, dataset, strict=True):
            torch.testing.assert_close(image, wanted, rtol=0, atol=1)
        draws = mine.augmentation([0, 1])
    assert [draw.crop for draw in draws] == [(0, 0, 20, 30)] * 2


def test_the_state_of_an_image_folder_outlives_a_move_of_the_folder(tmp_path: Path) -> None:
    folder = numbered_folder(tmp_path / "here")
    with Loader(image_folder(folder, ("PILToTensor",)), 5) as before:
        next(iter(before))
        state = before.state_dict()
    folder.rename(tmp_path / "there")
    with Loader(image_folder(tmp_path / "there", ("PILToTensor",)), 5) as after:
        after.load_state_dict(state)
        next(iter(after))
        assert after.batch.step == 1


def test_a_bad_file_of_an_image_folder_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(b"")
    message = rf"{tmp_path}/a/0\.jpg: .* \(row 0 of {tmp_path}\)"
    dataset = image_folder(tmp_path, ("PILToTensor",))
    with Loader(dataset) as batches, pytest.raises(ImageError, match=message):
        next(iter(batches))


def test_a_training_chain_takes_the_native_path(folder: Path) -> None:
    steps = [("RandomResizedCrop", 8), ("RandomHorizontalFlip",), ("ToTensor",)]
    dataset = image_folder(folder, *steps, version="v1")
    with Loader(dataset, 5, shuffle=True, seed=0, num_workers=2) as batches:
        assert batches.path == "native"
        rows = [told(images * 255) for images, _ in batches]
    assert sorted(flat(rows)) == list(range(ROWS))


def test_a_subset_takes_the_native_path_with_its_own_row_numbers(folder: Path) -> None:
    dataset = Subset(image_folder(folder, ("Resize", (8, 8)), ("PILToTensor",)), [20, 3, 11])
    with Loader(dataset, 2, sampler=[2, 0, 1]) as batches:
        assert batches.path == "native"
        assert [told(images) for images, _ in batches] == [[11, 20], [3]]


def test_transforms_given_beside_those_of_an_image_folder_come_after_them(folder: Path) -> None:
    dataset = image_folder(folder, ("Resize", (8, 8)), ("PILToTensor",))
    with Loader(dataset, 5, transforms=fastio.OnBatch(lambda images: images[:, :1])) as batches:
        assert batches.path == "native"
        assert next(iter(batches))[0].shape == (5, 1, 8, 8)


def test_an_image_folder_without_transforms_takes_those_of_the_loader(folder: Path) -> None:
    v2 = import_torchvision().transforms.v2
    transforms = [v2.Resize((8, 8)), v2.RandomHorizontalFlip()]
    with Loader(image_folder(folder), 5, transforms=transforms) as batches:
        assert batches.path == "native"
        assert told(next(iter(batches))[0]) == [0, 1, 2, 3, 4]


def test_a_compose_given_to_the_loader_is_taken_apart(folder: Path) -> None:
    v2 = import_torchvision().transforms.v2
    chain = v2.Compose([v2.Resize((8, 8)), v2.Compose([v2.ToDtype(torch.float32, scale=True)])])
    unknown = [chain, fastio.OnBatch(v2.RandomErasing(p=1.0))]
    with Loader(folder, 5, transforms=chain) as known, Loader(folder, 5, transforms=unknown) as odd:
        images, erased = next(iter(known))[0], next(iter(odd))[0]
    assert (images.dtype, images.shape) == (torch.float32, (5, 3, 8, 8))
    assert erased.shape == images.shape
    assert not torch.equal(erased, images)


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        (
            [("Resize", (8, 8)), ("Lambda", ImageOps.invert), ("Resize", (8, 8)), ("ToTensor",)],
            ") in native threads, Lambda(), Resize(size=(8, 8)",
        ),
        (
            [("Resize", (8, 8)), ("ToTensor",), ("RandomResizedCrop", 6)],
            ") in native threads, ToTensor(), RandomResizedCrop(size=(6, 6)",
        ),
    ],
)
def test_the_first_transform_that_is_not_known_and_all_after_it_run_per_sample(
    folder: Path, steps: list[Any], where: str
) -> None:
    dataset = image_folder(folder, *steps, version="v1")
    with Loader(dataset, 5) as batches:
        stats = batches.stats()
        images, labels = next(iter(batches))
    assert stats.path == "native"
    assert where in stats.transforms
    assert ") per sample in" in stats.transforms
    assert labels.tolist() == [0] * 5
    assert images.dtype == torch.float32


def test_any_other_dataset_takes_the_torch_path() -> None:
    with Loader(OwnDataset(4), 2) as batches:
        assert batches.path == "torch"
        assert batches.stats().reason == "fastio has no native reader for OwnDataset"


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        Loader(3)


@pytest.mark.parametrize("options", [{"fields": ["x"]}, {"on_error": "skip"}])
def test_native_arguments_are_refused_on_the_torch_path_which_says_why(
    options: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="OwnDataset"):
        Loader(OwnDataset(4), **options)


def test_crops_are_refused_on_the_torch_path_which_says_why() -> None:
    with pytest.raises(fastio.TransformError, match=r"Resize.*OwnDataset"):
        Loader(OwnDataset(4), transforms=[fastio.Resize(8)])


def test_cores_are_those_that_this_process_may_use() -> None:
    cores = available_cores()
    assert cores >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores <= len(os.sched_getaffinity(0))
