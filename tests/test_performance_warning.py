"""A loader that falls back to DataLoader warns once a process and reason, with the remedy."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import fastio
from fastio import Loader, PerformanceWarning
from fastio.feed.seeds import _warn_once
from tests.support import import_torchvision, numbered_folder
from tests.torch_support import OwnDataset

pytestmark = pytest.mark.usefixtures("warned_anew")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered_folder(tmp_path_factory.mktemp("warnings") / "photos")


def image_folder(folder: Path, **options: Any) -> Any:
    return import_torchvision().datasets.ImageFolder(str(folder), **options)


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def said(dataset: Any, **options: Any) -> str:
    """What one loader warns of."""
    with pytest.warns(PerformanceWarning) as caught, Loader(dataset, 2, **options):
        pass
    (found,) = caught
    assert found.filename == __file__
    return str(found.message)


def test_a_dataset_in_python_is_to_be_packed() -> None:
    message = said(OwnDataset(4))
    assert "OwnDataset through torch's DataLoader, in the calling thread" in message
    assert "fastio.pack(dataset, 'packed/')" in message


def test_a_dataset_that_iterates_is_to_be_packed() -> None:
    message = said(Counting(), num_workers=2)
    assert "Counting through torch's DataLoader, in 2 worker processes" in message
    assert "fastio.pack(dataset, 'packed/')" in message


def test_a_loader_of_its_own_is_to_be_left_out(folder: Path) -> None:
    message = said(image_folder(folder, loader=abs))
    assert "a loader of its own, abs" in message
    assert "Leave the loader out" in message


def test_a_transform_that_cannot_be_sent_to_processes_is_to_be_defined_in_a_module(
    folder: Path,
) -> None:
    unsendable = image_folder(folder, transform=lambda image: image)
    message = said(unsendable, num_workers=1, multiprocessing_context="spawn")
    assert "worker processes cannot be sent the transform" in message
    assert "at the top of a module" in message


def test_a_transform_of_hugging_face_s_is_to_be_taken_off() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [1, 2]}).with_transform(lambda batch: batch)
    assert "dataset.reset_format()" in said(rows)


def test_a_function_is_told_by_its_name_and_not_by_its_address(folder: Path) -> None:
    known = import_torchvision().transforms
    chain = known.Compose([known.Lambda(str), lambda image: image, known.ToTensor()])
    dataset = image_folder(folder, transform=chain)
    message = said(dataset, num_workers=1, multiprocessing_context="spawn")
    assert "<lambda>" in message
    assert " at 0x" not in message
    with Loader(image_folder(folder, transform=chain), 2) as loader:
        assert "lambda ...: ..., ToTensor() per sample in" in loader.stats().transforms


def here() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_warnings_point_to_the_line_that_made_the_loader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for dataset, options in ((OwnDataset(4), {}), (folder, {"pin_memory": True})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader, line = Loader(dataset, 2, **options), here()  # type: ignore[arg-type]
        loader.close()
        [found] = caught
        assert (found.filename, found.lineno) == (__file__, line)


def test_a_sharding_warning_points_to_the_line_that_iterates(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    _warn_once.cache_clear()
    with Loader(folder, 2) as loader:
        with pytest.warns(fastio.ShardingWarning, match="distributed=True") as caught:
            line = (iter(loader), here())[1]
        [found] = caught
        assert (found.filename, found.lineno) == (__file__, line)
    _warn_once.cache_clear()


def test_the_same_reason_is_told_once_a_process_and_others_are_told() -> None:
    said(OwnDataset(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Loader(OwnDataset(4), 2) as loader:
            assert loader.stats().reason == "fastio has no native reader for OwnDataset"
    said(Counting())


def test_the_native_path_and_what_is_refused_say_nothing(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Loader(folder, 2) as loader:
            assert loader.path == "native"
        with pytest.raises(fastio.TransformError):
            Loader(fastio.mix({OwnDataset(4): 1.0}))
