"""Callables on a field: `OnBatch` says once a batch, and anything else that can be called is
refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import fastio
from fastio import Loader, OnBatch
from fastio.transforms import compile, on_whole_batch
from tests.support import import_torchvision, numbered_folder

SMALL = [fastio.Resize((8, 8))]


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fastio.pack(folder, folder.parent / "packed")
    return folder.parent / "packed"


def test_the_torch_path_refuses_a_function_of_samples_and_names_the_way_for_batches() -> None:
    with pytest.raises(fastio.TransformError, match=r"fastio\.OnBatch, which runs once per batch"):
        Loader(TensorDataset(torch.arange(4)), transforms={0: abs})


def test_on_batch_runs_once_a_batch(folder: Path) -> None:
    shapes: list[tuple[int, ...]] = []

    def note(images: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(images.shape))
        return images

    with Loader(folder, 5, transforms=[*SMALL, OnBatch(note)]) as loader:
        assert len(list(loader)) == 5
    assert shapes == [(5, 3, 8, 8)] * 4 + [(4, 3, 8, 8)]


def test_on_batch_of_a_random_transform_draws_once_for_all_images(folder: Path) -> None:
    torch.manual_seed(0)
    steps = [*SMALL, OnBatch(import_torchvision().transforms.v2.RandomGrayscale(0.5))]
    gray = []
    with Loader(folder, 4, transforms=steps) as loader:
        for images, _ in loader:
            same = (images == images[:, :1]).flatten(1).all(dim=1)
            assert len(set(same.tolist())) == 1
            gray.append(bool(same[0]))
    assert set(gray) == {True, False}


def test_its_name_is_what_a_user_writes() -> None:
    assert repr(OnBatch(abs)) == "OnBatch(abs)"
    assert repr(OnBatch(numbered_folder)) == "OnBatch(numbered_folder)"
    assert repr(OnBatch(lambda x: x)) == "OnBatch(lambda ...: ...)"
    assert "\n" not in repr(OnBatch(torch.nn.Sequential(torch.nn.ReLU())))


def test_it_is_a_value_that_travels_with_its_function() -> None:
    assert pickle.loads(pickle.dumps(OnBatch(abs))) == OnBatch(abs)
    with pytest.raises(AttributeError):
        OnBatch(abs).function = max  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [3, OnBatch(abs)])
def test_what_it_holds_is_a_function(wrong: Any) -> None:
    with pytest.raises(fastio.TransformError, match="takes a callable"):
        OnBatch(wrong)


def test_under_none_callables_are_of_the_batch_by_their_place() -> None:
    assert on_whole_batch([abs, OnBatch(max)]) == (abs, max)
    with pytest.raises(fastio.TransformError, match=r"one field: use transforms=\{field"):
        on_whole_batch([fastio.Normalize([0.5], [0.5])])


def test_a_dataset_cannot_run_it_by_accident_on_single_samples() -> None:
    with pytest.raises(TypeError, match="not callable"):
        OnBatch(abs)(3)  # type: ignore[operator]


def test_compiled_steps_are_the_functions() -> None:
    assert compile([*SMALL, OnBatch(abs)]).batch == (abs,)
