"""torch's datasets: ImageFolders recognised as files, and anything read by DataLoader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, random_split

from fastio.sources.torch_dataset import (
    ImageFiles,
    Slow,
    TorchReader,
    WorkerSettings,
    fingerprint,
    image_files,
    is_iterable_dataset,
)
from tests.support import import_torchvision, numbered_folder


class Counting(IterableDataset[int]):
    def __init__(self, end: int) -> None:
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.end))


class Sized(Dataset[int]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered_folder(tmp_path_factory.mktemp("data") / "images", (3, 2))


def image_folder(folder: Path, **options: Any) -> Any:
    return import_torchvision().datasets.ImageFolder(folder, **options)


# Recognition


def test_an_image_folder_is_known_by_its_files(folder: Path) -> None:
    files = image_files(image_folder(folder, transform=len))
    assert isinstance(files, ImageFiles)
    assert [Path(path).name for path, _ in files.samples] == [
        "000.jpg",
        "001.jpg",
        "002.jpg",
        "000.jpg",
        "001.jpg",
    ]
    assert [label for _, label in files.samples] == [0, 0, 0, 1, 1]
    assert files.classes == ["class0", "class1"]
    assert files.transform is len


def test_a_subset_of_a_subset_is_known_in_its_own_order(folder: Path) -> None:
    whole = image_folder(folder)
    files = image_files(Subset(Subset(whole, [4, 0, 2]), torch.tensor([2, 0])))
    assert isinstance(files, ImageFiles)
    assert files.samples == [whole.samples[2], whole.samples[4]]
    assert files.as_dataset().labels.tolist() == [0, 1]


def test_indices_of_a_subset_that_are_no_integers_are_an_error(folder: Path) -> None:
    with pytest.raises(TypeError, match="float"):
        image_files(Subset(image_folder(folder), [1.5]))  # type: ignore[list-item]


def test_a_random_split_is_known(folder: Path) -> None:
    part, rest = random_split(image_folder(folder), [2, 3])
    files = [image_files(part), image_files(rest)]
    assert [len(found.samples) for found in files if isinstance(found, ImageFiles)] == [2, 3]


def test_image_folders_with_a_loader_of_their_own_are_not_known(folder: Path) -> None:
    found = image_files(image_folder(folder, loader=Path.read_bytes))
    assert isinstance(found, Slow)
    name = Path.read_bytes.__qualname__  # that of a base class in Python 3.13
    assert f"loader of its own, {name}" in found.reason


def image_dataset_of_timm(folder: Path, **attributes: Any) -> Any:
    """A dataset with the names and attributes that timm's has (timm is not installed here)."""
    samples = image_folder(folder).samples
    reader = type("ReaderImageFolder", (), {})()
    vars(reader).update(root=str(folder), samples=samples, class_to_idx={"class1": 1, "class0": 0})
    dataset = type("ImageDataset", (Dataset,), {"__module__": "timm.data.dataset"})()
    given = {"reader": reader, "load_bytes": False, "input_img_mode": "RGB", "transform": len}
    given |= {"target_transform": abs, "additional_features": None}
    vars(dataset).update(given | attributes)
    return dataset


def test_an_image_dataset_of_timm_is_known_by_its_files(folder: Path) -> None:
    files = image_files(image_dataset_of_timm(folder))
    assert isinstance(files, ImageFiles)
    assert files.samples == image_folder(folder).samples
    assert files.classes == ["class0", "class1"]
    assert (files.transform, files.target_transform) == (len, abs)


@pytest.mark.parametrize(
    "attributes", [{"load_bytes": True}, {"input_img_mode": "L"}, {"additional_features": ["x"]}]
)
def test_an_image_dataset_of_timm_that_gives_something_else_is_not_known(
    folder: Path, attributes: dict[str, Any]
) -> None:
    assert isinstance(image_files(image_dataset_of_timm(folder, **attributes)), Slow)


def test_a_subclass_of_image_folder_is_not_known(folder: Path) -> None:
    class Mine(import_torchvision().datasets.ImageFolder):  # type: ignore[misc]
        pass

    assert "no native reader for" in str(image_files(Mine(folder)))


def test_other_datasets_are_not_known() -> None:
    for dataset, name in (
        (TensorDataset(torch.zeros(2)), "TensorDataset"),
        (Subset(Sized(), [0]), "Sized"),
    ):
        found = image_files(dataset)
        assert isinstance(found, Slow)
        assert found.reason == f"fastio has no native reader for {name}"


def test_iterable_datasets_are_told_apart() -> None:
    assert is_iterable_dataset(Counting(3))
    assert not is_iterable_dataset(Sized())
    assert not is_iterable_dataset([1, 2])


def test_a_fingerprint_names_the_class_and_the_length() -> None:
    assert fingerprint(TensorDataset(torch.zeros(5))).endswith("TensorDataset[5]")
    assert fingerprint([1, 2]) == "builtins.list[2]"
    assert fingerprint(Counting(3)).endswith("Counting")


# Reading


def read(reader: TorchReader, *keys: Any) -> list[Any]:
    return [batch.tolist() for batch in reader.read(lambda: iter(keys))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reader_reads_the_keys_that_it_is_given(workers: int) -> None:
    reader = TorchReader(Sized(), WorkerSettings(num_workers=workers), batched=True)
    assert read(reader, [1, 2], [6], [0, 0, 3]) == [[1, 2], [6], [0, 0, 3]]
    assert read(reader, [5]) == [[5]]


def test_keys_are_drawn_once_an_epoch_and_no_further_than_the_workers_prefetch() -> None:
    drawn: list[int] = []

    def keys() -> Iterator[list[int]]:
        for key in range(7):
            drawn.append(key)
            yield [key]

    settings = WorkerSettings(num_workers=1, prefetch_factor=2)
    batches = TorchReader(Sized(), settings, batched=True).read(keys)
    next(batches)
    assert drawn == [0, 1, 2]


def test_persistent_workers_take_new_keys_every_epoch() -> None:
    settings = WorkerSettings(num_workers=1, persistent_workers=True)
    reader = TorchReader(Sized(), settings, batched=True)
    assert read(reader, [1], [2]) == [[1], [2]]
    assert read(reader, [3], [4]) == [[3], [4]]
    reader.close()


def test_two_epochs_at_once_have_their_own_keys() -> None:
    reader = TorchReader(Sized(), WorkerSettings(), batched=True)
    one = reader.read(lambda: iter([[1], [2]]))
    other = reader.read(lambda: iter([[3], [4]]))
    assert [next(b).tolist() for b in (one, other, one, other)] == [[1], [3], [2], [4]]


def test_without_batching_single_samples_are_read() -> None:
    reader = TorchReader(Sized(), WorkerSettings(), batched=False)
    assert list(reader.read(lambda: iter([4, 2]))) == [4, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_iterates_can_be_entered_later(workers: int) -> None:
    settings = WorkerSettings(num_workers=workers)
    reader = TorchReader(Counting(5), settings, batched=True, batch_size=2)
    whole = [batch.tolist() for batch in reader.read()]
    assert [batch.tolist() for batch in reader.read(skip=2)] == whole[2:]
    assert [batch.tolist() for batch in reader.read(skip=99)] == []


def test_an_iterable_dataset_is_batched_as_asked() -> None:
    reader = TorchReader(Counting(5), WorkerSettings(), batched=True, batch_size=2, drop_last=True)
    assert [batch.tolist() for batch in reader.read()] == [[0, 1], [2, 3]]


def test_a_profiler_sees_each_batch_as_with_dataloader() -> None:
    reader = TorchReader(Sized(), WorkerSettings(), batched=True)
    with profile() as recorded:
        assert read(reader, [1], [2]) == [[1], [2]]
    names = [event.name for event in recorded.events() if event.name.startswith("enumerate(Da")]
    assert len(names) == 3  # the third finds the end
    assert read(reader, [3]) == [[3]]


def test_dataloader_warns_of_each_batch_behind_the_length_of_an_iterable_dataset() -> None:
    class Short(Counting):
        def __len__(self) -> int:
            return 2

    reader = TorchReader(Short(4), WorkerSettings(), batched=True, batch_size=1)
    assert len(reader) == 2
    batches = reader.read()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [next(batches).item(), next(batches).item()] == [0, 1]
        assert not caught
        assert [batch.item() for batch in batches] == [2, 3]
    assert [str(warning.message).split("), ")[1][:13] for warning in caught] == [
        "but 3 samples",
        "but 4 samples",
    ]
