"""Arguments, lengths and warnings that torch's own tests leave out, compared with DataLoader."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

import fastio
from tests.support import import_torchvision, numbered_folder

ROWS = 10


class Endless(Dataset[int]):
    """Has any row, and therefore no length."""

    def __getitem__(self, row: int) -> int:
        return row


class Numbers(IterableDataset[int]):
    """Says a length that it exceeds."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": [5, 7, 1000], "batch_size": 2},
        {"sampler": [5, 7, 1000], "batch_size": 2, "drop_last": True},
        {"sampler": [5, 7], "batch_size": None},
        {"batch_sampler": [[5], [7, 1000]]},
    ],
    ids=str,
)
def test_a_sampler_gives_the_length_of_a_dataset_that_has_none(options: dict[str, Any]) -> None:
    plain = DataLoader(Endless(), **options)
    with fastio.Loader(Endless(), **options) as loader:
        assert len(loader) == len(plain) == len(list(loader))
        assert [np.asarray(batch).tolist() for batch in loader] == [
            np.asarray(batch).tolist() for batch in plain
        ]


@pytest.mark.parametrize("generator", [3, np.random.default_rng(3)], ids=["int", "numpy"])
def test_a_generator_that_is_none_of_torch_s_is_refused_with_what_to_give(generator: Any) -> None:
    with pytest.raises(TypeError, match=r"torch\.Generator\(\)\.manual_seed"):
        fastio.Loader(list(range(ROWS)), shuffle=True, generator=generator)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True])
def test_a_batch_size_is_refused_in_dataloader_s_words(batch_size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size") as plain:
        DataLoader([0], batch_size)
    with pytest.raises(ValueError, match="batch_size") as ours:
        fastio.Loader([0], batch_size)
    assert str(ours.value) == str(plain.value)


def test_more_samples_than_a_dataset_that_iterates_said_are_warned_of() -> None:
    with fastio.Loader(Numbers(), None) as loader:
        assert len(loader) == 3
        with pytest.warns(UserWarning, match="Length of IterableDataset .* reported to be 3"):
            assert list(loader) == list(range(ROWS))


class Located(Dataset[int]):
    """The worker's process id in place of each sample."""

    def __getitem__(self, row: int) -> int:
        return os.getpid()

    def __len__(self) -> int:
        return ROWS


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_that_persist_end_with_a_loader_that_is_dropped_within_an_epoch(
    shuffle: bool,
) -> None:
    loader = fastio.Loader(Located(), 1, shuffle, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    pid = next(iterator).item()
    del loader, iterator
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("native", [False, True])
def test_nothing_to_shuffle_is_refused_in_dataloader_s_words(native: bool, tmp_path: Path) -> None:
    whole: Any = TensorDataset(torch.arange(3))
    if native:
        fastio.pack([{"x": 1}, {"x": 2}], tmp_path / "packed")
        whole = fastio.open(tmp_path / "packed")
    nothing: Any = Subset(whole, [])
    with pytest.raises(ValueError, match="num_samples should be a positive") as expected:
        DataLoader(nothing, 2, shuffle=True)
    with pytest.raises(ValueError, match=re.escape(str(expected.value))):
        fastio.Loader(nothing, 2, shuffle=True)
    with fastio.Loader(nothing, 2) as loader:
        assert list(loader) == list(DataLoader(nothing, 2)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"num_workers": None},
        {"prefetch_factor": 2},
        {"prefetch_factor": -1, "num_workers": 1},
        {"timeout": -1},
        {"persistent_workers": True},
        {"batch_sampler": [[0]], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "unknown", "num_workers": 1},
    ],
    ids=str,
)
def test_options_that_dataloader_refuses_are_refused(options: dict[str, Any]) -> None:
    data: Any = [0, 1]
    with pytest.raises((TypeError, ValueError)) as plain:
        DataLoader(data, **options)
    with pytest.raises((TypeError, ValueError)) as ours:
        fastio.Loader(data, **options)
    assert type(ours.value) is type(plain.value)


def test_an_empty_list_of_a_batch_sampler_fails_as_in_dataloader() -> None:
    batches: Any = [[0, 1], [], [2]]
    with pytest.raises(IndexError) as plain:
        list(DataLoader([0, 1, 2], batch_sampler=batches))  # type: ignore[arg-type]
    with (
        fastio.Loader([0, 1, 2], batch_sampler=batches) as loader,
        pytest.raises(IndexError) as ours,
    ):
        list(loader)
    assert str(ours.value) == str(plain.value)
    with fastio.Loader([0, 1, 2], batch_sampler=batches, collate_fn=list) as loader:
        assert list(loader) == batches


def test_a_random_sampler_of_the_user_draws_anew_each_time_it_is_looked_at() -> None:
    def orders(kind: Any) -> list[list[list[int]]]:
        sampler = RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(5))
        loader = kind(list(range(ROWS)), 4, sampler=sampler, collate_fn=list)
        return [list(source) for source in (loader.batch_sampler, loader.batch_sampler, loader)]

    found = orders(fastio.Loader)
    assert found == orders(DataLoader)
    assert found[0] != found[1] != found[2]


@pytest.mark.parametrize("kind", ["images", "datasets"])
def test_a_part_without_samples_has_no_batches(kind: str, tmp_path: Path) -> None:
    if kind == "datasets":
        source = pytest.importorskip("datasets").Dataset.from_dict({"x": [1, 2]})
    else:
        folder = numbered_folder(tmp_path / "images", (2,))
        source = import_torchvision().datasets.ImageFolder(str(folder))
    nothing: Any = Subset(source, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = fastio.Loader(nothing, 4)
    assert (len(loader), list(loader)) == (len(DataLoader(nothing, 4)), [])
    with pytest.raises(ValueError, match="num_samples=0"):
        fastio.Loader(nothing, 4, shuffle=True)


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": 5}, {"batch_size": None}])
def test_epochs_that_are_left_early_leave_a_generator_as_dataloader_does(
    workers: int, options: dict[str, Any], path: str
) -> None:
    native = TensorDataset(torch.arange(ROWS))
    source: Any = native if path == "native" else list(range(ROWS))

    def first_batches(cls: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(3)
        loader = cls(source, shuffle=True, num_workers=workers, generator=generator, **options)
        found = [np.asarray(next(iter(loader))).tolist() for _ in range(3)]
        for size in (2, 3):  # the keys of the last batch may have been asked for
            found += [np.asarray(batch).tolist() for batch in islice(loader, size)]
        return [*found, torch.rand(1, generator=generator).item()]

    with fastio.Loader(source, **options) as loader:
        assert loader.path == path
    assert first_batches(fastio.Loader) == first_batches(DataLoader)
