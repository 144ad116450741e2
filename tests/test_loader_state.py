"""The state of a loader: it resumes exactly, anywhere, and is refused where it does not belong."""

from __future__ import annotations

import gc
import json
import warnings
import weakref
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fastio
from tests.numbered import loader, rows_of
from tests.support import flat, numbered_folder, told


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_state_resumes_at_every_position(folder: Path, shuffle: bool) -> None:
    with loader(folder, shuffle=shuffle, seed=3) as batches:
        batches.set_epoch(2)
        states = [batches.state_dict()]
        rows = []
        for images, _ in batches:
            rows.append(told(images))
            states.append(batches.state_dict())
    for done, state in enumerate(states):
        with loader(folder, shuffle=shuffle, seed=3) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert rows_of(resumed) == rows[done:]


def test_steps_of_a_resumed_epoch_are_counted_from_its_beginning(folder: Path) -> None:
    with loader(folder) as batches:
        list(islice(batches, 2))
        state = batches.state_dict()
    with loader(folder) as resumed:
        resumed.load_state_dict(state)
        next(iter(resumed))
        assert (resumed.batch.epoch, resumed.batch.step) == (0, 2)


def test_a_state_holds_for_other_batches_threads_and_ranks(folder: Path) -> None:
    with loader(folder, 4, shuffle=True) as batches:
        rest = rows_of(batches)
        list(islice(batches, 2))  # epoch 1
        batches.set_epoch(0)
        list(islice(batches, 2))
        state = batches.state_dict()
    rest = flat(rest[2:])
    for batch_size, world_size in [(4, 1), (3, 1), (7, 1), (2, 2), (1, 3)]:
        parts = []
        for rank in range(world_size):
            options: dict[str, Any] = {"rank": rank, "world_size": world_size, "num_workers": 1}
            with loader(folder, batch_size, shuffle=True, **options) as resumed:
                resumed.load_state_dict(state)
                parts.append([told(b[0])[: resumed.batch.valid] for b in resumed])
        assert flat(flat(zip(*parts, strict=True))) == rest


def test_only_batches_handed_out_count(folder: Path) -> None:
    with loader(folder, 2, prefetch_factor=6) as batches:
        iterator = iter(batches)
        next(iterator)
        assert batches.state_dict()["position"] == 2


def test_the_state_after_an_epoch_is_the_next_one_s_beginning(folder: Path) -> None:
    with loader(folder) as batches:
        list(batches)
        state = batches.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_state_is_small(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        next(iter(batches))
        assert len(json.dumps(batches.state_dict())) < 1024


def test_set_epoch_of_the_loaded_epoch_keeps_the_position(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        batches.set_epoch(4)
        whole = rows_of(batches)
        batches.set_epoch(4)
        list(islice(batches, 3))
        state = batches.state_dict()
        batches.load_state_dict(state)
        batches.set_epoch(4)
        assert rows_of(batches) == whole[3:]
        batches.load_state_dict(state)
        batches.set_epoch(5)
        assert len(rows_of(batches)) == len(whole)


def test_a_loaded_seed_is_kept_for_later_epochs(folder: Path) -> None:
    with loader(folder, shuffle=True, seed=11) as batches:
        next(iter(batches))
        state = batches.state_dict()
        second = rows_of(batches)
    with loader(folder, shuffle=True, seed=99) as resumed:
        resumed.load_state_dict(state)
        list(resumed)
        assert rows_of(resumed) == second


def test_a_state_resumes_the_order_that_a_generator_drew(folder: Path) -> None:
    with loader(folder, shuffle=True, generator=torch.Generator().manual_seed(1)) as batches:
        rows, states = [], []
        for images, _ in batches:
            rows.append(told(images))
            states.append(batches.state_dict())
    with loader(folder, shuffle=True, generator=torch.Generator().manual_seed(2)) as resumed:
        resumed.load_state_dict(states[1])
        assert rows_of(resumed) == rows[2:]


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_state_resumes_within_a_batch_sampler(folder: Path, done: int) -> None:
    batch_sampler = [[3], [1, 2, 0], [9, 9]]
    with loader(folder, 1, batch_sampler=batch_sampler) as batches:
        list(islice(batches, done))
        state = batches.state_dict()
        batches.load_state_dict(state)
        assert rows_of(batches) == batch_sampler[done:]


def test_a_state_of_another_dataset_is_refused(folder: Path, tmp_path: Path) -> None:
    with (
        loader(folder) as batches,
        loader(numbered_folder(tmp_path / "b", (3,))) as other,
        pytest.raises(fastio.StateMismatch, match="another dataset"),
    ):
        other.load_state_dict(batches.state_dict())


def test_a_state_of_another_order_is_refused(folder: Path) -> None:
    with (
        loader(folder, shuffle=True) as batches,
        loader(folder) as other,
        pytest.raises(fastio.StateMismatch, match="'shuffle'"),
    ):
        other.load_state_dict(batches.state_dict())


SAMPLERS = {
    "RandomSampler": partial(RandomSampler, range(6)),
    "with replacement": partial(RandomSampler, range(6), replacement=True, num_samples=40),
    "SubsetRandomSampler": partial(SubsetRandomSampler, range(1, 6)),
    "WeightedRandomSampler": partial(WeightedRandomSampler, [1.0] * 6, 9),
}


class Grouped(BatchSampler):
    """A user's batch sampler."""


@pytest.mark.parametrize("drawn_by", ["torch", "its own", "the loader's"])
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(
    ("path", "options"), [("native", {}), ("torch", {}), ("torch", {"num_workers": 1})]
)
def test_random_samplers_of_torch_draw_the_same_orders_after_each_state(
    path: str, options: dict[str, Any], kind: str, drawn_by: str
) -> None:
    def made() -> fastio.Loader:
        generator = None if drawn_by == "torch" else torch.Generator().manual_seed(5)
        sampler = Grouped(SAMPLERS[kind](generator=generator), 4, False)
        rows = TensorDataset(torch.arange(6))
        data: Any = rows if path == "native" else list(rows)
        shared = generator if drawn_by == "the loader's" else None
        return fastio.Loader(data, batch_sampler=sampler, generator=shared, **options)

    torch.manual_seed(1)
    delivered, states = [], []
    with made() as loader:
        for epoch in range(2):
            for (rows,) in loader:
                delivered.append((epoch, rows.tolist()))
                torch.rand(1)  # of a model
                states.append((loader.state_dict(), torch.get_rng_state()))
            states[-1] = loader.state_dict(), torch.get_rng_state()
    for done, (state, of_torch) in enumerate(states[:-1], 1):
        torch.manual_seed(2)
        with made() as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            epoch = delivered[done][0]
            if epoch != delivered[done - 1][0]:  # it draws an order from torch's generator
                torch.set_rng_state(of_torch)
            left = [rows for of, rows in delivered[done:] if of == epoch]
            assert [rows.tolist() for (rows,) in resumed] == left


def test_a_sampler_s_generator_can_be_seeded_for_each_epoch() -> None:
    generator = torch.Generator()
    sampler = RandomSampler(range(6), generator=generator)
    with fastio.Loader(TensorDataset(torch.arange(6)), sampler=sampler) as loader:
        epochs = []
        for _ in range(2):
            generator.manual_seed(3)
            epochs.append([rows.tolist() for (rows,) in loader])
        assert epochs[0] == epochs[1]


def test_a_sampler_is_not_kept_by_a_reference_cycle() -> None:
    sampler = BatchSampler(RandomSampler(range(999)), 2, False)
    gone = weakref.ref(sampler)
    gc.disable()
    try:
        with fastio.Loader(TensorDataset(torch.arange(999)), batch_sampler=sampler) as loader:
            next(iter(loader))
        del loader, sampler
        assert gone() is None
    finally:
        gc.enable()


def test_the_order_that_a_sampler_of_another_rank_drew_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> fastio.Loader:
        sampler = RandomSampler(range(9), generator=torch.Generator())
        return fastio.Loader(folder, sampler=sampler, rank=0, world_size=1)

    with made() as loader:
        next(iter(loader))
        state = loader.state_dict()
        list(loader)
        after = loader.state_dict()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with made() as resumed:
        with pytest.warns(UserWarning, match="no order of a random sampler on this rank") as caught:
            resumed.load_state_dict(state)
        assert caught[0].filename == __file__
        assert len(list(resumed)) == 8
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed.load_state_dict(after)
        assert len(list(resumed)) == 9


def test_resuming_a_random_sampler_does_not_move_torchs_generator(folder: Path) -> None:
    with fastio.Loader(folder, sampler=RandomSampler(range(6))) as loader:
        next(iter(loader))
        state = loader.state_dict()
    before = torch.get_rng_state()
    with fastio.Loader(folder, sampler=RandomSampler(range(6))) as resumed:
        resumed.load_state_dict(state)
        list(resumed)
    assert torch.get_rng_state().equal(before)
