"""Datasets and samplers of the user's with a state of their own resume by it, through torchdata."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, get_worker_info

import fastio
from fastio import Loader, StateMismatch
from tests.children import run_code

pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

ROWS = 24


class Counted(Dataset[tuple[int, int]]):
    """Each sample tells how many samples this copy of the dataset has given."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[int, int]:
        self.given += 1
        return row, self.given

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class RandomNumbers(Counted):
    """Samples are drawn from torch's default generator of the process."""

    def __getitem__(self, row: int) -> tuple[int, int]:
        return row, int(torch.randint(1 << 30, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


class Stream(IterableDataset[tuple[int, int]]):
    """Reads a stream that goes on where an earlier reader has left it, epoch after epoch."""

    def __init__(self) -> None:
        self.at = self.epoch = 0
        self.resumed = False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self.at, self.resumed = self.at if self.resumed else 0, False
        while self.at < ROWS // workers:
            self.at += 1
            yield self.at * workers + worker, self.epoch
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch, self.resumed = state["at"], state["epoch"], True


class ItsIterator:
    """An iterator with a state; the dataset that makes it has none."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> ItsIterator:
        return self

    def __next__(self) -> int:
        if self.at == ROWS:
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class WithItsIterator(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return ItsIterator()


class Wandering(Sampler[int]):
    """A sampler whose order goes on from the last key, so that a new one has another order."""

    def __init__(self, key: int) -> None:
        self.key, self.at = key, 0

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        while self.at < ROWS:
            self.at += 1
            self.key = (self.key * 5 + self.at) % ROWS
            yield self.key
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "key": self.key}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.key = state["at"], state["key"]


class PlainRows(Dataset[int]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> int:
        return row


def values(batches: Any) -> list[Any]:
    return [
        batch.tolist() if hasattr(batch, "tolist") else torch.stack(batch).tolist()
        for batch in batches
    ]


KINDS = [Counted, RandomNumbers, Stream, WithItsIterator]
HOW = [
    pytest.param({"num_workers": 0}, id="here"),
    pytest.param({"num_workers": 2}, id="workers"),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent"),
]


def batches_of(loader: Loader, done: int) -> Iterator[Any]:
    """The batches of the epoch in which `done` batches end, 6 each, and of the one after it."""
    return (batch for _ in range(2 + done // 7) for batch in loader)


@pytest.mark.parametrize(
    ("done", "how"),
    [
        *(
            pytest.param(done, *how.values, id=f"{done}-{how.id}")
            for how in HOW
            for done in (4, 6, 7)
        ),
        # Workers that are kept have not yet ended an epoch here: these are those of "workers".
        *(
            pytest.param(done, *how.values, id=f"{done}-{how.id}")
            for how in HOW[:2]
            for done in (0, 1)
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_continues_from_its_own_state(kind: Any, how: dict[str, Any], done: int) -> None:
    def make() -> Loader:
        torch.manual_seed(5)
        return Loader(kind(), 4, seed=1, **how)

    with make() as loader:
        batches = batches_of(loader, done)
        for _ in range(done):
            next(batches)
        state, random = loader.state_dict(), torch.get_rng_state()
        rest = values(batches)
    state = pickle.loads(pickle.dumps(state))
    with make() as again:
        again.load_state_dict(state)
        torch.set_rng_state(random)
        assert again.state_dict()["stateful"] == state["stateful"] or kind is RandomNumbers
        assert values(islice(batches_of(again, done), len(rest))) == rest


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_the_state_at_an_epoch_s_end_begins_the_next(kind: Any, how: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    with Loader(
        kind(), 4, shuffle=kind in (Counted, RandomNumbers), generator=generator, **how
    ) as loader:
        for _ in loader:
            pass
        state = json_or_same(loader.state_dict())
        rest = values(loader)
    generator = torch.Generator().manual_seed(4)
    with Loader(
        kind(), 4, shuffle=kind in (Counted, RandomNumbers), generator=generator, **how
    ) as again:
        again.load_state_dict(state)
        assert values(again) == rest


def json_or_same(state: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(state)))
    except TypeError:  # tensors in it
        return state


@pytest.mark.parametrize("how", HOW)
def test_a_state_from_before_the_first_epoch_goes_back_to_it(how: dict[str, Any]) -> None:
    with Loader(Counted(), 4, **how) as loader:
        state = loader.state_dict()
        first = values(loader)
        loader.load_state_dict(state)
        assert values(loader) == first


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
@pytest.mark.parametrize("kind", [Stream, RandomNumbers])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_distributed_checkpoint_has_the_state_of_the_dataset(
    kind: Any, workers: int, tmp_path: Any
) -> None:
    with Loader(kind(), 4, num_workers=workers, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
        rest = values(batches)
    with Loader(kind(), 4, num_workers=workers, seed=1) as loader:
        dcp.load({"loader": loader}, checkpoint_id=tmp_path / "saved")
        assert values(loader) == rest


def test_workers_that_read_ahead_are_not_ahead_in_the_state() -> None:
    with Loader(Counted(), 1, num_workers=1, prefetch_factor=8) as loader:
        batches = iter(loader)
        next(batches)
        [saved] = loader.state_dict()["stateful"]
        snapshot = saved["workers"]["state"]["_snapshot"]["_worker_snapshots"]["worker_0"]
        assert snapshot["dataset_state"] == {"given": 1}


def test_another_number_of_workers_is_refused_naming_both() -> None:
    with Loader(Counted(), 4, num_workers=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with Loader(Counted(), 4, num_workers=1) as loader:
        with pytest.raises(StateMismatch, match=r"in 2 worker processes.*num_workers=1"):
            loader.load_state_dict(state)
        loader.num_workers = 2
        next(iter(loader))  # the feed of these settings
        loader.load_state_dict(state)
        loader.num_workers = 1
        with pytest.raises(StateMismatch, match=r"in 2 worker processes.*num_workers=1"):
            iter(loader)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(ROWS)


@pytest.mark.parametrize(("other", "name"), [((3, 2), "batch_size"), ((4, 1), "num_workers")])
def test_an_iterable_dataset_counts_batches_of_one_size(other: tuple[int, int], name: str) -> None:
    with Loader(Numbers(), 4, num_workers=2) as loader:
        state = loader.state_dict()
    batch_size, num_workers = other
    with (
        Loader(Numbers(), batch_size, num_workers=num_workers) as loader,
        pytest.raises(StateMismatch, match=f"{name}': [42].*{name}': [31]"),
    ):
        loader.load_state_dict(state)


def sampled(path: str, tmp_path: Any) -> Any:
    if path == "torch":
        return PlainRows()
    fastio.pack([{"x": torch.tensor(row).numpy()} for row in range(ROWS)], tmp_path / path)
    return tmp_path / path


def rows(batches: Any) -> list[Any]:
    return [(batch["x"] if isinstance(batch, dict) else batch).tolist() for batch in batches]


@pytest.mark.parametrize("path", ["torch", "native"])
@pytest.mark.parametrize("how", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [2, 6, 7])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_sampler_continues_from_its_own_state(
    path: str, how: str, workers: int, done: int, tmp_path: Any
) -> None:
    dataset = sampled(path, tmp_path)

    def make(key: int) -> Loader:
        sampler = Wandering(key)
        given: dict[str, Any] = {"sampler": sampler, "batch_size": 4}
        if how == "batch_sampler":
            given = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}
        return Loader(dataset, num_workers=workers, **given)

    with make(7) as loader:
        epochs = batches_of(loader, done)
        for _ in range(done):
            next(epochs)
        state, rest = json.loads(json.dumps(loader.state_dict())), rows(epochs)
    with make(11) as loader:
        loader.load_state_dict(state)
        assert rows(islice(batches_of(loader, done), len(rest))) == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_over_a_sampler_continues_from_its_own_state(workers: int) -> None:
    class Made(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return ItsIterator()

    with Loader(range(100), 3, sampler=Made(), num_workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), rows(batches)
    with Loader(range(100), 3, sampler=Made(), num_workers=workers) as loader:
        loader.load_state_dict(state)
        assert rows(loader) == rest
        assert len(rows(loader)) == ROWS // 3


def test_the_state_of_a_sampler_is_refused_by_a_sampler_that_has_none() -> None:
    with Loader(PlainRows(), 4, sampler=Wandering(7)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with Loader(PlainRows(), 4, sampler=range(ROWS)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateMismatch, match="range has no load_state_dict"):
            next(iter(loader))


def test_out_of_order_batches_have_no_exact_state_and_a_warning_says_so() -> None:
    with Loader(Counted(), 4, num_workers=2, in_order=False) as loader:
        next(iter(loader))
        with pytest.warns(UserWarning, match="in_order"):
            assert loader.state_dict()["stateful"] is None


WITHOUT = """
import sys, warnings
assert "torchdata" not in sys.modules
sys.modules["torchdata"] = None
sys.path.insert(0, {folder!r})
from test_stateful_datasets_child import Counted
import fastio, json
loader = fastio.Loader(Counted(), 4)
next(iter(loader))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    state = loader.state_dict()
assert state["stateful"] is None
assert any("fastio[stateful]" in str(each.message) for each in told), told
saved = json.loads({state!r})
try:
    loader.load_state_dict(saved)
except fastio.StateMismatch as error:
    assert "fastio[stateful]" in str(error), error
else:
    raise AssertionError("the state of the dataset was dropped")
"""


def test_without_torchdata_a_warning_and_an_error_name_the_extra(tmp_path: Any) -> None:
    with Loader(Counted(), 4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    source = "class Counted:\n" + "".join(
        f"    {line}\n"
        for line in (
            "def __len__(self): return 24",
            "def __getitem__(self, row): return row",
            "def state_dict(self): return {}",
            "def load_state_dict(self, state): pass",
        )
    )
    (tmp_path / "test_stateful_datasets_child.py").write_text(source)
    state["fingerprint"] = f"test_stateful_datasets_child.Counted[{ROWS}]"
    code = WITHOUT.format(folder=str(tmp_path), state=json.dumps(state))
    done = run_code(code)
    assert done.returncode == 0, done.stderr
