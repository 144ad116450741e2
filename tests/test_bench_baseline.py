"""What a bench compares with: DataLoader and Pillow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from fastio.bench.baseline import BaselineBatches, PillowFolder, evaluation_edge, middle
from fastio.errors import BenchError
from tests.support import numbered_folder, told


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
    plain = PillowFolder(str(folder), 16, normalized=False)[3][0]
    normal = PillowFolder(str(folder), 16, normalized=True)[3][0]
    expected = (plain.float().mean((1, 2)) / 255 - torch.tensor([0.485, 0.456, 0.406])) / (
        torch.tensor([0.229, 0.224, 0.225])
    )
    assert torch.allclose(normal.mean((1, 2)), expected, atol=0.02)


def test_evaluation_takes_the_middle() -> None:
    image = Image.new("RGB", (90, 60))
    image.paste((255, 0, 0), (40, 0, 50, 60))
    found = middle(image, 28)
    assert found.size == (28, 28)
    assert found.getpixel((14, 14)) == (255, 0, 0)
    assert evaluation_edge(224) == 256


def test_batches_come_with_their_samples_and_transforms(folder: Path) -> None:
    dataset = PillowFolder(str(folder), 16, normalized=False)
    batches = BaselineBatches(dataset, 10, workers=0, transforms=[lambda images: images[:, :1]])
    found = [(images.shape, len(labels), samples) for (images, labels), samples in batches]
    assert found == [
        ((10, 1, 16, 16), 10, 10),
        ((10, 1, 16, 16), 10, 10),
        ((4, 1, 16, 16), 4, 4),
    ]
    assert len(batches) == 3


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no folders with images"):
        PillowFolder(str(tmp_path), 16, normalized=False)
