"""What a bench compares with: DataLoader and Pillow."""

from __future__ import annotations

import math
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastio import BenchError
from fastio.diagnose.bench.baseline import (
    Delivery,
    PillowFolder,
    TorchLoader,
)
from fastio.diagnose.imagesteps import evaluation_edge, middle, random_box
from tests.support import import_torchvision, numbered_folder, told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return numbered_folder(tmp_path / "photos")


def test_samples_are_crops_with_their_class(folder: Path) -> None:
    dataset = PillowFolder(str(folder), 16, normalized=False)
    assert len(dataset) == 24
    image, label = dataset[20]
    assert image.shape == (3, 16, 16)
    assert image.dtype == torch.uint8
    assert told([image]) == [20]
    assert label == 2


def test_normalised_as_torchvision_does(folder: Path) -> None:
    plain, normal = (
        PillowFolder(str(folder), 16, normalized, augment=False)[3][0]
        for normalized in (False, True)
    )
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (plain.float() / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(normal, expected)


def test_crops_are_torchvisions() -> None:
    torchvision = import_torchvision()
    random.seed(0)
    drawn = [random_box(500, 375) for _ in range(2000)]
    torch.manual_seed(0)
    image = Image.new("RGB", (500, 375))
    params = torchvision.transforms.RandomResizedCrop.get_params
    expected = [params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(2000)]

    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in drawn]
    wanted = [height * width for _, _, height, width in expected]
    assert np.mean(areas) == pytest.approx(np.mean(wanted), rel=0.05)
    ratios = [math.log((x1 - x0) / (y1 - y0)) for x0, y0, x1, y1 in drawn]
    wanted_ratios = [math.log(width / height) for _, _, height, width in expected]
    assert np.mean(ratios) == pytest.approx(np.mean(wanted_ratios), abs=0.02)
    assert all(0 <= x0 < x1 <= 500 and 0 <= y0 < y1 <= 375 for x0, y0, x1, y1 in drawn)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (40, 301), (160, 160)])
def test_evaluation_is_torchvisions(size: tuple[int, int]) -> None:
    transforms = import_torchvision().transforms
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(noise)
    expected = transforms.Compose([transforms.Resize(146), transforms.CenterCrop(128)])(image)
    assert np.array_equal(middle(image, 128), expected)


def test_evaluation_takes_the_middle() -> None:
    image = Image.new("RGB", (90, 60))
    image.paste((255, 0, 0), (40, 0, 50, 60))
    found = middle(image, 28)
    assert found.size == (28, 28)
    assert found.getpixel((14, 14)) == (255, 0, 0)
    assert evaluation_edge(224) == 256


def test_batches_come_with_their_samples_and_transforms(folder: Path) -> None:
    dataset = PillowFolder(str(folder), 16, normalized=False)
    batches = TorchLoader(dataset, 10, workers=0, transforms=[lambda images: images[:, :1]])
    found = [(images.shape, len(labels), batches.batch.valid) for images, labels in batches]
    assert found == [
        ((10, 1, 16, 16), 10, 10),
        ((10, 1, 16, 16), 10, 10),
    ]
    assert len(batches) == 2
    whole = TorchLoader(dataset, 50, workers=0)
    assert [whole.batch.valid for _ in whole] == [24]


def test_a_delivery_lays_out_and_normalises(folder: Path) -> None:
    images = PillowFolder(str(folder), 16, normalized=False)
    wanted = PillowFolder(str(folder), 16, normalized=True)
    raw = torch.stack([images[row][0] for row in (0, 20)]), torch.tensor([0, 2])
    found, labels = Delivery(torch.device("cpu"), channels_last=True, normalize=True)(raw)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.dtype == torch.float32
    assert labels.tolist() == [0, 2]
    means = torch.stack([wanted[row][0].mean((1, 2)) for row in (0, 20)])
    assert torch.allclose(found.mean((2, 3)), means, atol=0.02)
    plain, _ = Delivery(torch.device("cpu"))(raw)
    assert torch.equal(plain, raw[0])


def test_endless_batches_are_full_and_go_on_behind_an_epoch(folder: Path) -> None:
    dataset = PillowFolder(str(folder), 16, normalized=False)
    batches = TorchLoader(dataset, 10, workers=0, endless=True)
    found = [told(images) for images, _ in islice(batches, 12)]
    assert [len(one) for one in found] == [10] * 12
    rows = [row for one in found for row in one]
    for epoch in range(0, 120, 24):
        assert sorted(rows[epoch : epoch + 24]) == list(range(24))


def test_classes_are_those_of_a_loader(folder: Path) -> None:
    (folder / "aaa").mkdir()
    with pytest.raises(BenchError, match="aaa"):
        PillowFolder(str(folder), 16, normalized=False)


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no subfolders with images"):
        PillowFolder(str(tmp_path), 16, normalized=False)
    with pytest.raises(BenchError, match="nothing is not a folder"):
        PillowFolder(str(tmp_path / "nothing"), 16, normalized=False)
