"""torchvision's sets in memory: natively, with what DataLoader delivers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import fastio
from fastio import DatasetNotFound, Loader, TransformError
from tests.support import import_torchvision
from tests.torch_support import assert_same, equal

ROWS = 37


def held(name: str, transform: Any = None, target_transform: Any = None) -> Any:
    """One of torchvision's sets with random pixels, without its files."""
    datasets = import_torchvision().datasets
    kind = getattr(datasets, name)
    dataset = kind.__new__(kind)
    random = np.random.default_rng(5)
    labels = random.integers(0, 10, ROWS)
    shape: tuple[int, ...] = (32, 32, 3) if name.startswith("CIFAR") else (28, 28)
    shape = {"SVHN": (3, 32, 32), "STL10": (3, 96, 96), "USPS": (16, 16)}.get(name, shape)
    shape = (16, 16) if name == "SEMEION" else shape
    data = random.integers(0, 256, (ROWS, *shape), np.uint8)
    dataset.data = torch.from_numpy(data) if "MNIST" in name else data
    if name == "SVHN":  # as scipy's loadmat gives it
        dataset.data = np.asfortranarray(data.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    given: Any = torch.from_numpy(labels) if "MNIST" in name else labels
    if name.startswith("CIFAR") or name == "USPS":
        given = labels.tolist()
    if name == "QMNIST":
        dataset.what, dataset.compat = "train", True
        given = torch.stack([torch.from_numpy(labels)] * 8, 1)
    setattr(dataset, "labels" if name in ("SVHN", "STL10", "SEMEION") else "targets", given)
    dataset.transform, dataset.target_transform = transform, target_transform
    return dataset


SETS = ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST"]
SETS += ["SVHN", "STL10", "USPS", "SEMEION"]


@pytest.mark.parametrize("name", SETS)
def test_torchvision_sets(name: str) -> None:
    transforms = import_torchvision().transforms
    one = (0.5,) if name in ("USPS", "SEMEION") or "MNIST" in name else (0.5, 0.4, 0.3)
    assert_close(held(name, transforms.ToTensor()))
    both = transforms.Compose([transforms.ToTensor(), transforms.Normalize(one, one)])
    assert_close(held(name, both))


def assert_close(dataset: Any) -> None:
    """As `assert_same`; one rounding of a division by 255 differs from torchvision's two."""
    torch.manual_seed(1)
    expected = list(DataLoader(dataset, 4, shuffle=True))
    torch.manual_seed(1)
    with Loader(dataset, 4, shuffle=True) as loader:
        assert loader.path == "native"
        for (image, label), (wanted, number) in zip(loader, expected, strict=True):
            assert torch.equal(label, number)
            torch.testing.assert_close(image, wanted)


def test_target_transforms_and_unknown_transforms() -> None:
    transforms = import_torchvision().transforms
    own = transforms.Compose([transforms.ToTensor(), transforms.Lambda(negative)])
    assert_close(held("CIFAR10", own, double))
    assert_close(Subset(held("MNIST", own, double), [5, 3, 8, 9, 9]))


def negative(image: Any) -> Any:
    return -image


def double(label: int) -> int:
    return 2 * label


@pytest.mark.parametrize("name", ["MNIST", "USPS"])
@pytest.mark.parametrize("step", ["Grayscale", "RGB"])
def test_gray_images_get_three_channels_where_a_step_gives_them(name: str, step: str) -> None:
    v2 = import_torchvision().transforms.v2
    three = v2.Grayscale(3) if step == "Grayscale" else v2.RGB()
    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    for after in ([], [v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]):
        assert_close(held(name, v2.Compose([three, *floats, *after])))
        assert_close(held(name, v2.Compose([three, v2.RandomInvert(1.0), *floats, *after])))


def test_views_of_gray_images_have_equally_many_channels() -> None:
    views = fastio.Views([[fastio.Resize(8)], [fastio.Resize(8), fastio.Grayscale(3)]])
    with pytest.raises(TransformError, match="all of them three by Grayscale"):
        list(Loader(held("MNIST"), 4, transforms={"image": views}))


def test_parts_of_torchvision_sets() -> None:
    transforms = import_torchvision().transforms
    dataset = held("CIFAR10", transforms.ToTensor())
    assert_close(random_split(dataset, [30, 7], torch.Generator().manual_seed(0))[0])
    assert_close(ConcatDataset([dataset, held("CIFAR100", transforms.ToTensor())]))


def test_changes_of_a_torchvision_set() -> None:
    transforms = import_torchvision().transforms
    dataset = held("CIFAR10", transforms.ToTensor())
    with Loader(dataset, ROWS) as loader:
        list(loader)
        dataset.targets[0] = 77
        dataset.data = dataset.data[:5]
        dataset.targets = dataset.targets[:5]
        ((images, labels),) = list(loader)
    assert images.shape[0] == 5
    assert labels[0] == 77


def test_labels_of_cifar_keep_their_type() -> None:
    transforms = import_torchvision().transforms
    dataset = held("CIFAR10", transforms.ToTensor())
    for dtype in (torch.int32, torch.uint8):
        dataset.targets = torch.arange(ROWS).to(dtype)
        assert_close(dataset)


def test_labels_that_are_tensors_show_changes() -> None:
    dataset = held("MNIST")
    with fastio.open(dataset) as opened, Loader(opened, ROWS) as loader:
        dataset.targets.fill_(9)
        assert next(iter(loader))[1].tolist() == [9] * ROWS


def test_reversed_data_takes_the_torch_path() -> None:
    dataset = held("CIFAR10", import_torchvision().transforms.ToTensor())
    dataset.data = dataset.data[::-1]
    with Loader(dataset, 4) as loader:
        assert loader.path == "torch"
        assert equal(list(loader), list(DataLoader(dataset, 4)))


def test_sets_with_other_data_take_the_torch_path() -> None:
    transforms = import_torchvision().transforms
    dataset = held("CIFAR10", transforms.ToTensor())
    dataset.data = dataset.data.astype(np.float32)[:, :, :, 0]
    with Loader(dataset, 4) as loader:
        assert loader.path == "torch"
        assert "float32" in loader.stats().reason


def test_samples_for_collate_fn_are_those_of_the_set() -> None:
    dataset = held("MNIST")

    def collate(samples: list[Any]) -> list[Any]:
        return [(image.mode, image.size, image.tobytes(), label) for image, label in samples]

    assert_same(dataset, 4, collate_fn=collate)


def test_a_set_with_transforms_is_not_opened_without_them() -> None:
    transforms = import_torchvision().transforms
    with pytest.raises(DatasetNotFound, match=r"fastio\.Loader"):
        fastio.open(held("CIFAR10", transforms.ToTensor()))
    assert len(fastio.open(held("CIFAR10"))) == ROWS


def test_draws_are_keyed_by_row_not_by_threads() -> None:
    transforms = import_torchvision().transforms
    steps = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    dataset = held("CIFAR10", transforms.Compose([*steps, transforms.ToTensor()]))
    batches = []
    for threads in (1, 3):
        with Loader(dataset, 5, shuffle=True, seed=9, num_workers=threads) as loader:
            batches.append(torch.cat([images for images, _ in loader]))
    assert torch.equal(*batches)
