"""What a Loader is beside its batches: a DataLoader, with the attributes that DataLoader has."""

from __future__ import annotations

import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

import fastio

ROWS = 20


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("surface") / "packed"
    fastio.pack([{"x": np.int64(row)} for row in range(ROWS)], path)
    return path


class Numbers(Dataset[int]):
    def __getitem__(self, row: int) -> int:
        return row

    def __len__(self) -> int:
        return ROWS


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(ROWS))


@pytest.fixture(params=["native", "torch"])
def source(request: pytest.FixtureRequest, packed: Path) -> Any:
    return packed if request.param == "native" else TensorDataset(torch.arange(ROWS))


def rows(batches: Any) -> list[list[int]]:
    return [(b["x"] if isinstance(b, dict) else b[0]).tolist() for b in batches]


def test_a_loader_is_a_dataloader(source: Any) -> None:
    with fastio.Loader(source) as loader:
        assert isinstance(loader, DataLoader)
    assert fastio.Loader[int].__origin__ is fastio.Loader


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samplers_give_the_next_epoch_and_leave_it_there(
    source: Any, shuffle: bool, drop_last: bool
) -> None:
    with fastio.Loader(source, 6, shuffle, drop_last=drop_last) as loader:
        kind = RandomSampler if shuffle else SequentialSampler
        assert isinstance(loader.sampler, kind)
        assert type(loader.batch_sampler) is BatchSampler
        assert loader.batch_sampler.sampler is loader.sampler
        assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (6, drop_last)
        assert len(loader.sampler) == ROWS
        assert len(loader.batch_sampler) == len(loader)
        for _ in range(2):
            before = torch.get_rng_state()
            told = [list(loader.batch_sampler) for _ in range(2)]
            assert torch.equal(torch.get_rng_state(), before)
            assert sorted(loader.sampler) == list(range(ROWS))
            assert told == [rows(loader)] * 2


def test_samplers_peek_at_a_generator(packed: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    with fastio.Loader(packed, 6, True, generator=generator) as loader:
        assert list(loader.batch_sampler) == rows(loader)
        assert list(loader.batch_sampler) == rows(loader)


def test_samplers_of_a_rank_give_its_rows(packed: Path) -> None:
    with fastio.Loader(packed, 3, True, rank=1, world_size=2) as loader:
        assert list(loader.batch_sampler) == rows(loader)
        assert len(loader.sampler) == sum(map(len, rows(loader)))


def test_samplers_of_the_user_are_the_loader_s(source: Any) -> None:
    sampler = SubsetRandomSampler(range(7))
    with fastio.Loader(source, 3, sampler=sampler) as loader:
        assert loader.sampler is sampler
        assert loader.batch_sampler.sampler is sampler
    batches = BatchSampler(sampler, 2, False)
    with fastio.Loader(source, batch_sampler=batches) as loader:
        assert loader.batch_sampler is batches
        assert isinstance(loader.sampler, SequentialSampler)
        assert loader.batch_size is None
    with fastio.Loader(source, None) as loader:
        assert loader.batch_sampler is None


def test_a_dataset_that_iterates_has_an_endless_sampler() -> None:
    plain = DataLoader(Stream(), 4)
    with fastio.Loader(Stream(), 4) as loader:
        assert type(loader.sampler) is type(plain.sampler)
        assert loader.batch_sampler.batch_size == 4


def test_attributes_are_those_of_dataloader() -> None:
    def init(worker: int) -> None: ...

    generator = torch.Generator()
    options: dict[str, Any] = {
        "num_workers": 1,
        "timeout": 3,
        "worker_init_fn": init,
        "generator": generator,
        "persistent_workers": True,
        "multiprocessing_context": "spawn",
        "drop_last": True,
    }
    plain = DataLoader(Numbers(), 4, **options)
    with fastio.Loader(Numbers(), 4, **options) as loader:
        names = [name for name in vars(plain) if not name.startswith("_")]
        assert {"pin_memory", "prefetch_factor", "collate_fn", "in_order"} < set(names)
        for name in names:
            if not name.endswith("sampler"):
                assert getattr(loader, name) is getattr(plain, name) or name == "dataset"
        assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_protected_attributes_cannot_be_assigned_to(source: Any) -> None:
    protected = "batch_size", "batch_sampler", "sampler", "drop_last", "dataset"
    with fastio.Loader(source) as loader:
        for name in (*protected, "persistent_workers", "transforms", "seed", "device"):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
                setattr(loader, name, None)
        loader.mine = 3


def test_attributes_that_may_be_assigned_to_are_followed(source: Any) -> None:
    with fastio.Loader(source, 10) as loader:
        list(loader)
        loader.collate_fn = len
        assert list(loader) == [10, 10]
        loader.collate_fn = default_collate
        assert rows(loader) == [list(range(10)), list(range(10, 20))]
        assert loader.stats().samples == 60


def test_an_iterator_goes_on_while_the_loader_changes(source: Any) -> None:
    with fastio.Loader(source, 10) as loader:
        first = iter(loader)
        next(first)
        loader.collate_fn = len
        assert list(loader) == [10, 10]
        assert rows(first) == [list(range(10, 20))]


def test_samplers_survive_pickling_and_hold_no_loader(packed: Path) -> None:
    loader = fastio.Loader(packed, 6, True)
    again = pickle.loads(pickle.dumps(loader))
    assert list(again.batch_sampler) == list(loader.batch_sampler) == rows(again)
    gone = weakref.ref(loader)
    sampler = loader.sampler
    del loader
    assert gone() is None
    assert len(list(sampler)) == ROWS
    again.close()
