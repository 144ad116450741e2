"""What decides the order and the draws: torch's seed, a seed, a generator; and who gets which part.

Orders that a generator draws are compared with those of torch's DataLoader.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import fastio
from fastio import Loader, RandomResizedCrop
from fastio.feed import seeds
from fastio.order import sampling
from tests.children import run_together
from tests.servers import http_folder
from tests.support import flat, numbered_folder

ROWS = 22
CROPS = {"image": [RandomResizedCrop(6)]}


class Numbers(torch.utils.data.Dataset[int]):
    """Row numbers, for the torch path."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> int:
        return row


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeds") / "packed"
    noise = np.random.default_rng(0).integers(0, 256, (ROWS, 16, 20, 3), np.uint8)
    fastio.pack([{"image": image, "row": row} for row, image in enumerate(noise)], path)
    return path


@pytest.fixture(params=["native", "torch"])
def source(request: pytest.FixtureRequest, packed: Path) -> Any:
    return packed if request.param == "native" else Numbers()


def rows_of(batches: Any) -> list[Any]:
    """The row of each batch, as its samples tell it."""
    return [np.asarray(b["row"] if isinstance(b, dict) else b).tolist() for b in batches]


def crops_of(path: Path, **options: Any) -> torch.Tensor:
    with Loader(path, 5, transforms=CROPS, num_workers=1, **options) as loader:
        return torch.cat([batch["image"] for batch in loader])


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# A generator


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 100, None])
def test_a_generator_gives_data_loader_s_order_in_every_epoch(
    source: Any, batch_size: int | None, drop_last: bool
) -> None:
    if batch_size is None and drop_last:
        pytest.skip("not possible with DataLoader")
    options: dict[str, Any] = {"shuffle": True, "drop_last": drop_last}
    mine, its = generator(), generator()
    theirs = DataLoader(Numbers(), batch_size, generator=its, **options)
    with Loader(source, batch_size, generator=mine, **options) as loader:
        for _ in range(3):
            wanted = [batch if batch_size is None else batch.tolist() for batch in theirs]
            assert rows_of(loader) == wanted
            assert torch.equal(mine.get_state(), its.get_state())


@pytest.mark.parametrize("left_after", [1, 5, 6])
def test_an_epoch_that_is_left_draws_what_data_loader_draws(source: Any, left_after: int) -> None:
    mine, its = generator(), generator()
    theirs = DataLoader(Numbers(), 4, shuffle=True, generator=its)
    with Loader(source, 4, shuffle=True, generator=mine) as loader:
        for _ in range(3):
            wanted = [batch.tolist() for batch in islice(theirs, left_after)]
            assert rows_of(islice(loader, left_after)) == wanted
            assert torch.equal(mine.get_state(), its.get_state())


@pytest.mark.parametrize("done", [0, 1, 5, 6, 7, 11])
def test_a_state_resumes_what_a_generator_drew(source: Any, done: int) -> None:
    def batches(loader: Loader) -> Iterator[list[int]]:
        for _ in range(4):
            for batch in loader:
                yield rows_of([batch])[0]

    with Loader(source, 4, shuffle=True, generator=generator(1)) as loader:
        stream = batches(loader)
        for _ in range(done):
            next(stream)
        state = json.loads(json.dumps(loader.state_dict()))
        wanted = list(islice(stream, 9))
    assert len(json.dumps(state)) < 4096
    with Loader(source, 4, shuffle=True, generator=generator(2)) as resumed:
        resumed.load_state_dict(state)
        assert list(islice(batches(resumed), 9)) == wanted


def test_states_with_and_without_a_generator_are_told_apart(packed: Path) -> None:
    for order in ("shuffle", "window"):
        with (
            Loader(packed, 4, order=order, generator=generator()) as drawn,
            Loader(packed, 4, order=order, seed=0) as seeded,
        ):
            for one, other in ((drawn, seeded), (seeded, drawn)):
                next(iter(one))
                with pytest.raises(fastio.StateMismatch, match="generator"):
                    other.load_state_dict(one.state_dict())


def test_ranks_share_out_the_order_of_a_generator(source: Any) -> None:
    wanted = [b.tolist() for b in DataLoader(Numbers(), 8, shuffle=True, generator=generator())]
    parts = []
    for rank in range(2):
        how: dict[str, Any] = {"rank": rank, "world_size": 2, "generator": generator()}
        with Loader(source, 4, shuffle=True, **how) as loader:
            parts.append([rows_of([b])[0][: loader.batch.valid] for b in loader])
    assert [a + b for a, b in zip(*parts, strict=True)] == wanted


@pytest.mark.parametrize("seed", [0, 3])
def test_beside_a_generator_a_seed_is_of_the_augmentations(packed: Path, seed: int) -> None:
    drawn = DataLoader(Numbers(), ROWS, shuffle=True, generator=generator())
    order = next(iter(drawn)).tolist()
    both = crops_of(packed, shuffle=True, seed=seed, generator=generator())
    assert torch.equal(both, crops_of(packed, seed=seed)[order])
    assert not torch.equal(both, crops_of(packed, seed=seed + 1)[order])


def test_without_a_seed_a_generator_decides_the_augmentations_too(packed: Path) -> None:
    torch.manual_seed(0)
    first = crops_of(packed, shuffle=True, generator=generator())
    torch.manual_seed(1)
    assert torch.equal(first, crops_of(packed, shuffle=True, generator=generator()))


# torch's seed


def epochs_and_draws(make: Any, seed: int, epochs: int = 3, left_after: int = 99) -> list[Any]:
    """Batches of some epochs, and what torch's default generator gives behind each of them."""
    torch.manual_seed(seed)
    found = []
    for loader in (make() for _ in range(epochs)):
        batches = iter(loader)
        found.append(rows_of(islice(batches, left_after)))
        found.append(torch.rand(2).tolist())
    return found


def always(loader: Any) -> Any:
    return lambda: loader


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(4, False), (4, True), (11, False), (1, 0)])
def test_torch_s_seed_alone_gives_data_loader_s_order_and_leaves_torch_where_it_does(
    source: Any, batch_size: int, drop_last: bool, seed: int
) -> None:
    options: dict[str, Any] = {"shuffle": True, "drop_last": bool(drop_last)}
    wanted = epochs_and_draws(always(DataLoader(Numbers(), batch_size, **options)), seed)
    with Loader(source, batch_size, **options) as loader:
        assert epochs_and_draws(always(loader), seed) == wanted


def test_single_samples_come_in_data_loader_s_order(source: Any) -> None:
    wanted = epochs_and_draws(always(DataLoader(Numbers(), None, shuffle=True)), 3)
    with Loader(source, None, shuffle=True) as loader:
        assert epochs_and_draws(always(loader), 3) == wanted


def test_loaders_made_anew_and_epochs_that_are_left_have_data_loader_s_order(source: Any) -> None:
    loaders = []

    def make() -> Loader:
        loaders.append(Loader(source, 4, shuffle=True))
        return loaders[-1]

    wanted = epochs_and_draws(lambda: DataLoader(Numbers(), 4, shuffle=True), 5, left_after=2)
    assert epochs_and_draws(make, 5, left_after=2) == wanted
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_change_nothing_of_what_torch_draws(source: Any, persistent: bool) -> None:
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
    wanted = epochs_and_draws(always(DataLoader(Numbers(), 4, shuffle=True, **options)), 1)
    with Loader(source, 4, shuffle=True, **options) as loader:
        assert epochs_and_draws(always(loader), 1) == wanted


def test_the_torch_path_draws_the_order_when_the_first_batch_is_asked_for() -> None:
    def first(kind: Any) -> list[list[int]]:
        torch.manual_seed(2)
        batches = iter(kind(Numbers(), 4, shuffle=True))
        torch.rand(1)  # what a model draws that is made in between
        return rows_of(batches)

    assert first(Loader) == first(DataLoader)


@pytest.mark.parametrize("how", [{"seed": 4}, {"order": "window"}, {"transforms": CROPS}, {}])
def test_every_epoch_moves_torch_s_generator_as_data_loader_s_does(
    packed: Path, how: dict[str, Any]
) -> None:
    wanted = epochs_and_draws(always(DataLoader(Numbers(), 4, shuffle=True)), 9)[1::2]
    with Loader(packed, 4, shuffle=True, **how) as loader:
        torch.manual_seed(9)
        for drawn in wanted:
            list(loader)
            assert torch.rand(2).tolist() == drawn


def test_a_mix_moves_torch_s_generator_as_data_loader_s_does(packed: Path) -> None:
    wanted = epochs_and_draws(always(DataLoader(Numbers(), 4, shuffle=True)), 9)[1::2]
    with Loader(fastio.mix({packed: 1.0}), 4, shuffle=True) as loader:
        assert epochs_and_draws(always(loader), 9)[1::2] == wanted


@pytest.mark.parametrize("done", range(13))
def test_a_state_and_torch_s_generator_resume_what_torch_s_seed_alone_decides(
    source: Any, done: int
) -> None:
    def batches(loader: Loader) -> Iterator[Any]:
        while True:
            for batch in loader:
                yield rows_of([batch])[0], torch.rand(1).item()

    torch.manual_seed(1)
    with Loader(source, 4, shuffle=True) as loader:
        stream = batches(loader)
        for _ in range(done):
            next(stream)
        state, drawn = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
        wanted = list(islice(stream, 9))
    torch.manual_seed(2)
    with Loader(source, 4, shuffle=True) as resumed:
        resumed.load_state_dict(state)
        torch.set_rng_state(drawn)
        assert list(islice(batches(resumed), 9)) == wanted


def test_a_state_alone_resumes_the_epoch_that_torch_s_seed_decides(source: Any) -> None:
    with Loader(source, 4, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        state, wanted = loader.state_dict(), rows_of(batches)
    with Loader(source, 4, shuffle=True) as resumed:
        resumed.load_state_dict(state)
        assert rows_of(resumed) == wanted
        assert sorted(flat(rows_of(resumed))) == list(range(ROWS))


def test_ranks_go_on_in_an_epoch_that_one_process_drew(source: Any) -> None:
    with Loader(source, 4, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        state, wanted = loader.state_dict(), rows_of(batches)
    parts = []
    for rank in range(2):
        with Loader(source, 2, shuffle=True, rank=rank, world_size=2) as resumed:
            resumed.load_state_dict(state)
            parts.append([rows_of([b])[0][: resumed.batch.valid] for b in resumed])
    assert [a + b for a, b in zip(*parts, strict=True)] == wanted


def test_a_dataset_too_large_for_a_permutation_has_an_order_of_its_own(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST_PERMUTED", ROWS - 1)
    wanted = epochs_and_draws(always(DataLoader(Numbers(), 4, shuffle=True)), 9)
    with Loader(packed, 4, shuffle=True) as loader:
        found = epochs_and_draws(always(loader), 9)
        state = loader.state_dict()
    assert found[1::2] == wanted[1::2]
    assert found[0] != wanted[0]
    assert (state["seed"] is None, state["order_seed"]) == (False, None)


def test_losses_are_data_loader_s_bit_by_bit(tmp_path: Path) -> None:
    columns = torch.randn(40, 6, generator=generator())
    plain = torch.utils.data.TensorDataset(columns)
    fastio.pack([(row,) for row in columns.numpy()], tmp_path / "packed")

    def losses(make: Any) -> list[float]:
        torch.manual_seed(11)
        loader = make()
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(), torch.nn.ReLU())
        step = torch.optim.SGD(model.parameters(), 0.1)
        found = []
        for _ in range(3):
            for (x,) in loader:
                step.zero_grad()
                loss = (model(x) - x).square().mean()
                loss.backward()
                step.step()
                found.append(loss.item())
        return found

    wanted = losses(lambda: DataLoader(plain, 8, shuffle=True))
    with Loader(plain, 8, shuffle=True) as first, Loader(tmp_path / "packed", 8, True) as second:
        assert losses(always(first)) == losses(always(second)) == wanted


def test_order_and_draws_follow_torch_s_seed(packed: Path) -> None:
    def epochs(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        with Loader(packed, 5, shuffle=True, transforms=CROPS) as loader:
            return [batch["image"] for _ in range(2) for batch in loader]

    first, again, other = epochs(0), epochs(0), epochs(1)
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_a_loader_made_anew_for_each_epoch_does_not_repeat_its_order(source: Any) -> None:
    torch.manual_seed(0)
    orders = []
    for _ in range(3):
        with Loader(source, 4, shuffle=True) as loader:
            orders.append(rows_of(loader))
    assert len({str(order) for order in orders}) == 3


def test_zero_is_a_seed(packed: Path) -> None:
    torch.manual_seed(0)
    first = crops_of(packed, shuffle=True, seed=0)
    torch.manual_seed(1)
    assert torch.equal(first, crops_of(packed, shuffle=True, seed=0))


def test_samplers_on_torch_s_default_generator_give_what_they_give_data_loader(source: Any) -> None:
    sampler = WeightedRandomSampler([1.0] * ROWS, ROWS)
    torch.manual_seed(3)
    theirs = DataLoader(Numbers(), 4, sampler=sampler)
    wanted = [[batch.tolist() for batch in theirs] for _ in range(3)]
    torch.manual_seed(3)
    with Loader(source, 4, sampler=sampler) as loader:
        assert [rows_of(loader) for _ in range(3)] == wanted


def test_a_state_brings_its_drawn_seed_along(packed: Path) -> None:
    torch.manual_seed(0)
    with Loader(packed, 5, shuffle=True, transforms=CROPS) as loader:
        batches = iter(loader)
        list(islice(batches, 2))
        state = loader.state_dict()
        rest = [batch["image"] for batch in batches]
    with Loader(packed, 5, shuffle=True, transforms=CROPS) as resumed:
        resumed.load_state_dict(state)
        assert all(map(torch.equal, [batch["image"] for batch in resumed], rest))


def test_augmentations_are_not_told_before_their_seed_is_drawn(packed: Path) -> None:
    with Loader(packed, 5, transforms=CROPS) as loader:
        with pytest.raises(RuntimeError, match="seed"):
            loader.augmentation([0])
        next(iter(loader))
        assert len(loader.augmentation([0])) == 1


def test_augmentations_of_an_epoch_whose_seed_torch_draws_are_told_of_that_epoch(
    packed: Path,
) -> None:
    with Loader(packed, 5, shuffle=True, transforms=CROPS) as loader:
        list(loader)
        told = loader.augmentation([0, 1])
        state = loader.state_dict()
        assert state["seed"] is None
        assert loader.augmentation([0, 1], epoch=0) == told
        with pytest.raises(RuntimeError, match="the seed of epoch 1"):
            loader.augmentation([0], epoch=1)
        list(loader)
        assert loader.augmentation([0, 1]) != told


# Ranks


def test_ranks_without_a_process_group_need_a_seed(packed: Path) -> None:
    options: dict[str, Any] = {"rank": 0, "world_size": 2}
    for random in ({"shuffle": True}, {"transforms": CROPS}):
        with (
            Loader(packed, 4, **options, **random) as loader,
            pytest.raises(ValueError, match=r"seed=.*init_process_group"),
        ):
            iter(loader)
    for decided in ({}, {"shuffle": True, "seed": 0}, {"sampler": range(4), "transforms": CROPS}):
        with Loader(packed, 4, **options, **decided) as loader:  # type: ignore[arg-type]
            next(iter(loader))


@pytest.fixture
def second_of_four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    seeds._warn_once.cache_clear()
    yield
    seeds._warn_once.cache_clear()


@pytest.mark.usefixtures("second_of_four")
def test_every_process_gets_everything_unless_sharding_is_asked_for(source: Any) -> None:
    everything = list(range(ROWS))
    with Loader(source, ROWS) as loader, pytest.warns(fastio.ShardingWarning, match="distributed="):
        assert rows_of(loader) == [everything]
    with Loader(source, ROWS) as loader:  # told once
        assert rows_of(loader) == [everything]
    with Loader(source, 3, distributed=True) as loader:
        assert rows_of(loader)[0] == [3, 4, 5]


@pytest.mark.usefixtures("second_of_four")
def test_who_chose_is_not_warned(source: Any) -> None:
    chosen: list[dict[str, Any]] = [
        {"distributed": False},
        {"distributed": True},
        {"rank": 0, "world_size": 1},
        {"sampler": range(4)},
        {"batch_sampler": [[0, 1]]},
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in chosen:
            with Loader(source, **options) as loader:
                next(iter(loader))


def test_distributed_excludes_rank_and_world_size(packed: Path) -> None:
    for distributed in (True, False):
        with pytest.raises(ValueError, match="mutually exclusive"):
            Loader(packed, rank=0, world_size=2, distributed=distributed)


_RANK = """
import json, os, sys
import torch
import torch.distributed
import fastio

rank, store, packed = int(os.environ["RANK_OF_TEST"]), sys.argv[1], sys.argv[2]
crops = [fastio.RandomResizedCrop(6)]
torch.manual_seed(rank)  # each its own
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2
)
found = []
for _ in range(2):  # the second loader agrees on a seed of its own
    loader = fastio.Loader(packed, 4, shuffle=True, distributed=True, transforms={"image": crops})
    steps = []
    for _ in range(2):
        for batch in loader:
            steps.append(batch["row"][: loader.batch.valid].tolist())
    found.append([loader.state_dict()["seed"], steps])
    loader.close()
alone = fastio.Loader(packed, 4, shuffle=True, distributed=False)
if rank == 1:  # no part in anything of the other's
    found.append([batch["row"].tolist() for batch in alone])
print(json.dumps([rank, found]))
torch.distributed.destroy_process_group()
"""


_PLACES = """
import json, os, sys
import torch
import torch.distributed
import fastio

rank, store, packed = int(os.environ["RANK_OF_TEST"]), sys.argv[1], sys.argv[2]
torch.manual_seed(rank)  # each its own
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2
)

def make(**options):
    return fastio.Loader(packed, 4, shuffle=True, distributed=True, **options)

def rows(loader):
    return [row for batch in loader for row in batch["row"][: loader.batch.valid].tolist()]

one, other, alone = make(), make(), make(timeout=0.3)
found = {}
for name in ("one", "other") if rank == 0 else ("other", "one"):
    if name == "other":
        torch.distributed.barrier()  # what is collective comes in between, as in training
    found[name] = rows({"one": one, "other": other}[name])
if rank == 1:
    try:
        iter(alone)
    except fastio.LoaderTimeout as error:
        found["error"] = str(error)
torch.distributed.barrier()
if rank == 0:  # whom nobody has to wait for
    found["alone"] = rows(make())
print(json.dumps([rank, found]))
torch.distributed.destroy_process_group()
"""


_BUDGETS = """
import json, os, sys
import torch
import torch.distributed
import fastio

rank, store, url = int(os.environ["RANK_OF_TEST"]), sys.argv[1], sys.argv[2]
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2
)
budget = [64 << 20, 1 << 15][rank]  # the data has 40 KB
data = fastio.open(url, cache=fastio.Cache(f"{store}-{rank}", budget), partitions=1)
found = []
resize = {"image": [fastio.Resize((8, 8))]}
options = {"shuffle": True, "seed": SEED, "distributed": True}
with data, fastio.Loader(data, 4, transforms=resize, **options) as loader:
    for _ in range(2):
        rows = [loader.batch.rows[: loader.batch.valid].tolist() for _ in loader]
        found.append(sum(rows, []))
print(json.dumps([rank, found]))
torch.distributed.destroy_process_group()
"""


def two_ranks(
    script: str, tmp_path: Path, packed: Path | str, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """What two processes print that have a rank and a store for their process group."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    ranks = [{"RANK_OF_TEST": str(rank)} for rank in range(2)]
    done = run_together(script, ranks, tmp_path / "store", packed)
    assert done.returncode == 0, done.stderr
    return [found for _, found in sorted(map(json.loads, done.stdout.splitlines()))]


@pytest.mark.parametrize("seed", [None, 3])
def test_ranks_whose_caches_differ_in_size_read_each_row_once(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastio.pack(numbered_folder(tmp_path / "photos", (50, 50)), tmp_path / "web" / "packed")
    with http_folder(tmp_path / "web") as url:
        epochs = two_ranks(
            _BUDGETS.replace("SEED", str(seed)), tmp_path, f"{url}/packed", monkeypatch
        )
    for one, other in zip(*epochs, strict=True):
        assert sorted(one + other) == list(range(100))


def test_ranks_whose_loaders_stand_at_different_places_agree_on_each_one_s_seed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_ranks(_PLACES, tmp_path, packed, monkeypatch)
    for name in ("one", "other"):
        assert sorted(first[name] + second[name]) == list(range(ROWS))
    assert first["one"] != first["other"]
    assert len(first["alone"]) == ROWS // 2
    assert "rank 1 waited 0.3 s for the seed of rank 0" in second["error"]
    assert "seed=" in second["error"]


def test_ranks_agree_on_a_seed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = two_ranks(_RANK, tmp_path, packed, monkeypatch)
    for (seed, steps), (other, others) in zip(told[0][:2], told[1][:2], strict=True):
        assert seed == other
        rows = [a + b for a, b in zip(steps, others, strict=True)]
        first, second = flat(rows[:3]), flat(rows[3:])
        assert sorted(first) == sorted(second) == list(range(ROWS))
        assert first != second
    assert told[0][0] != told[0][1]
    assert sorted(flat(told[1][2])) == list(range(ROWS))


# Hugging Face's rows


@pytest.mark.parametrize(("fields", "path"), [(None, "torch"), (["row"], "native")])
def test_hugging_face_s_rows_for_a_collate_fn_come_in_data_loader_s_order(
    fields: Any, path: str
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"row": [[row] for row in range(ROWS)]})

    def gathered(samples: list[dict[str, list[int]]]) -> torch.Tensor:
        return torch.tensor([sample["row"][0] for sample in samples])

    theirs = DataLoader(rows, 4, shuffle=True, collate_fn=gathered)
    with Loader(rows, 4, shuffle=True, collate_fn=gathered, fields=fields) as loader:
        assert loader.path == path
        assert epochs_and_draws(always(loader), 6) == epochs_and_draws(always(theirs), 6)


def test_hugging_face_s_rows_come_in_data_loader_s_order_where_it_is_asked_for() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"row": list(range(ROWS))})
    theirs = DataLoader(rows, 4, shuffle=True)
    with Loader(rows, 4, order="shuffle") as loader:
        assert epochs_and_draws(always(loader), 6) == epochs_and_draws(always(theirs), 6)
