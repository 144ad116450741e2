"""Remote datasets of every shape, in every order, by loaders of every kind, resumed anywhere."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from torch.utils.data import Subset

import fastio
from fastio import Cache, Loader, Resize
from tests.children import in_fork
from tests.servers import FaultProxy
from tests.staging_support import (
    CROPS,
    MIB,
    Reference,
    noise,
    pack_mixed,
    pack_noise,
    pack_table,
    remote_loader,
)
from tests.support import open_loader

ROWS = 300
ALL = list(range(ROWS))


def png(row: int) -> bytes:
    """A PNG file that only one row has."""
    buffer = io.BytesIO()
    PillowImage.fromarray(noise(row, 32)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    pack_noise(folder / "photos", ROWS)
    pack_noise(folder / "one", 1)
    pack_mixed(folder / "mixed")
    pack_table(folder / "table", 8000, 8 << 10)
    fastio.pack(((png(row), row) for row in range(60)), folder / "png", shard_size=64 << 10)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> Reference:
    return Reference(root / "photos")


@pytest.fixture(params=(None, 16 * MIB, 2 * MIB), ids=("memory", "cache", "small"))
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache | None:
    return None if request.param is None else Cache(tmp_path / "cache", request.param)


# Orders


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"order": "sequential"},
        {"order": "shuffle"},
        {"order": "window"},
        {"sampler": np.random.default_rng(0).permutation(ROWS).tolist()},
        {"batch_sampler": [ALL[i : i + 7] for i in range(0, ROWS, 7)], "batch_size": 1},
    ],
    ids=("not shuffled", "sequential", "shuffle", "window", "sampler", "batch_sampler"),
)
def test_every_order(
    options: dict[str, Any], proxy: FaultProxy, reference: Reference, cache: Cache | None
) -> None:
    with remote_loader(f"{proxy.url}/photos", cache, **options) as loader:
        for _ in range(2):
            assert sorted(reference.epoch(loader)) == ALL


def test_single_samples(proxy: FaultProxy, reference: Reference, cache: Cache | None) -> None:
    with remote_loader(f"{proxy.url}/photos", cache, batch_size=None) as loader:
        seen = []
        for image, label in loader:
            assert torch.equal(image, reference.crops(0)[int(label)])
            seen.append(int(label))
    assert sorted(seen) == ALL


# Shapes


def test_a_dataset_of_one_row(proxy: FaultProxy, cache: Cache | None) -> None:
    with remote_loader(f"{proxy.url}/one", cache) as loader:
        for _ in range(3):
            ((_, labels),) = list(loader)
            assert labels.tolist() == [0]


def test_two_image_fields_text_and_arrays(
    proxy: FaultProxy, root: Path, cache: Cache | None
) -> None:
    options: dict[str, Any] = {
        "transforms": {"left": CROPS, "right": [Resize((8, 8))]},
        "seed": 0,
        "num_workers": 2,
    }
    with (
        open_loader(root / "mixed", 10, **options) as local,
        open_loader(f"{proxy.url}/mixed", 10, cache=cache, **options) as remote,
    ):
        for ours, theirs in zip(local, remote, strict=True):
            assert ours["caption"] == theirs["caption"]
            for name in ("left", "right", "box", "number"):
                assert torch.equal(ours[name], theirs[name])


def test_without_image_fields_each_shard_comes_once(proxy: FaultProxy, cache: Cache | None) -> None:
    orders: list[dict[str, Any]] = [{"shuffle": True}, {"sampler": list(range(7999, -1, -1))}]
    for options in orders:
        proxy.forget()
        with open_loader(f"{proxy.url}/table", 64, cache=cache, **options) as loader:
            seen = [y for b in loader for y in b["y"][b["x"][:, 5] == b["y"]].tolist()]
        assert sorted(seen) == list(range(8000))
        assert proxy.sent_twice("shard") == 0


def test_only_labels_fetch_no_images(proxy: FaultProxy) -> None:
    with Loader(f"{proxy.url}/photos", 16, fields=["label"]) as loader:
        labels = [int(label) for batch in loader for label in batch[0]]
    assert labels == ALL
    assert proxy.sent("shard") < ROWS * 1000


def test_images_that_pillow_decodes_are_fetched_by_blocks(
    proxy: FaultProxy, root: Path, cache: Cache | None
) -> None:
    with (
        Loader(root / "png", 10, seed=0, transforms=CROPS) as local,
        Loader(f"{proxy.url}/png", 10, seed=0, transforms=CROPS, cache=cache) as remote,
    ):
        for ours, theirs in zip(local, remote, strict=True):
            assert torch.equal(ours[0], theirs[0])
    assert len(proxy.answers("shard", "GET")) < 30
    assert proxy.sent("shard") < 2 * sum(f.stat().st_size for f in (root / "png").iterdir())


# Loaders at once


def test_two_datasets_and_two_loaders_in_one_folder(
    proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", 3 * MIB)
    with (
        remote_loader(f"{proxy.url}/photos", cache, 8) as eight,
        remote_loader(f"{proxy.url}/photos", Cache(cache.path, 3 * MIB), 11) as eleven,
        Loader(f"{proxy.url}/mixed", 4, shuffle=True, seed=0, transforms={}, cache=cache) as mixed,
    ):
        rows: dict[int, list[int]] = {8: [], 11: []}
        numbers = []
        runs = [iter(eight), iter(eleven), iter(mixed)]
        for _ in range(60):
            for loader, run in ((eight, runs[0]), (eleven, runs[1])):
                if (batch := next(run, None)) is not None:
                    rows[loader.batch_size] += reference.check(loader, batch)
            if (batch := next(runs[2], None)) is not None:
                numbers += batch["number"].tolist()
        assert sorted(rows[8]) == sorted(rows[11]) == ALL
        assert sorted(numbers) == list(range(120))


def test_two_iterators_of_one_loader_and_a_validation_between(
    proxy: FaultProxy, reference: Reference, cache: Cache | None
) -> None:
    with (
        remote_loader(f"{proxy.url}/photos", cache) as loader,
        remote_loader(f"{proxy.url}/photos", cache, shuffle=False) as validation,
    ):
        runs = [iter(loader), iter(loader)]
        rows: list[list[int]] = [[], []]
        for number in range(-(-ROWS // 8)):
            for run, seen in zip(runs, rows, strict=True):
                seen += reference.check(loader, next(run))
            if number == 10:
                assert reference.epoch(validation) == ALL
        assert sorted(rows[0]) == sorted(rows[1]) == ALL
        assert rows[0] != rows[1]


def test_a_pickled_loader_goes_on_elsewhere(
    proxy: FaultProxy, reference: Reference, cache: Cache | None
) -> None:
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        first = reference.check(loader, next(iter(loader)))
        with pickle.loads(pickle.dumps(loader)) as copy:
            copy.set_epoch(0)
            rows = reference.epoch(copy)
    assert sorted(rows) == ALL
    assert rows[: len(first)] == first


def test_forks_in_the_middle_of_an_epoch(
    proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp", reason="obstore does not work in forked processes")
    cache = Cache(tmp_path / "cache", 2 * MIB)
    reference.crops(1)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        rows, batches = [], [iter(loader)]

        def first_batch() -> bool:
            batches.clear()  # the parent's
            reference.check(loader, next(iter(loader)))
            loader.close()
            return True

        for number in range(-(-ROWS // 8)):
            rows += reference.check(loader, next(batches[0]))
            if number % 6 == 0:
                assert in_fork(first_batch) == 0
        assert sorted(rows) == ALL


# Ranks


def rank_of(
    url: str, cache: Cache | None, rank: int, world: int, state: Any, steps: int, answer: Any
) -> None:
    """Some steps of one rank: its rows, the state behind them, and how many steps there were."""
    with remote_loader(url, cache, rank=rank, world_size=world, num_workers=1) as loader:
        if state is not None:
            loader.load_state_dict(state)
        rows, count = [], 0
        for _ in loader:
            assert loader.batch.rows is not None
            rows += loader.batch.rows[: loader.batch.valid].tolist()
            count += 1
            if count == steps:
                break
        answer.send((rows, loader.state_dict(), count))


def ranks(url: str, caches: list[Cache | None], state: Any = None, steps: int = 0) -> list[Any]:
    """What all ranks answer, each a process of its own."""
    context = multiprocessing.get_context("forkserver")
    processes, answers = [], []
    for rank, cache in enumerate(caches):
        mine, theirs = context.Pipe(duplex=False)
        arguments = (url, cache, rank, len(caches), state, steps, theirs)
        processes.append(context.Process(target=rank_of, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        answers.append(mine)
    found = [answer.recv() for answer in answers]
    for process in processes:
        process.join()
    return found


def test_two_ranks_on_one_cache_fetch_what_one_would(
    proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    with remote_loader(f"{proxy.url}/photos", Cache(tmp_path / "alone")) as loader:
        loader.set_epoch(0)
        reference.epoch(loader)
    alone, twice = proxy.sent("shard"), proxy.sent_twice("shard")  # heads and blocks overlap a bit
    proxy.forget()
    one, two = ranks(f"{proxy.url}/photos", [Cache(tmp_path / "cache")] * 2)
    assert sorted(one[0] + two[0]) == ALL
    assert one[2] == two[2]
    assert (proxy.sent("shard"), proxy.sent_twice("shard")) == (alone, twice)


@pytest.mark.parametrize("world", [1, 3])
def test_an_epoch_goes_on_at_another_world_size_with_another_cache(
    world: int, proxy: FaultProxy, tmp_path: Path
) -> None:
    url = f"{proxy.url}/photos"
    one, two = ranks(url, [Cache(tmp_path / "one", 3 * MIB)] * 2, steps=7)
    assert one[1] == two[1]
    caches: list[Cache | None] = [None]
    if world > 1:
        caches = [Cache(tmp_path / "two", 16 * MIB)] * world
    rest = ranks(url, caches, one[1])
    assert len({steps for _, _, steps in rest}) == 1
    assert sorted(one[0] + two[0] + [row for rows, _, _ in rest for row in rows]) == ALL


@pytest.mark.parametrize("budget", [None, 2 * MIB, 64 * MIB])
def test_an_epoch_goes_on_in_one_process(
    budget: int | None, proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    for epoch in range(2):
        with remote_loader(f"{proxy.url}/photos", Cache(tmp_path / "one", 4 * MIB)) as loader:
            loader.set_epoch(epoch)
            rows = []
            for batch in loader:
                rows += reference.check(loader, batch)
                if len(rows) == 104:
                    break
            state = loader.state_dict()
        cache = None if budget is None else Cache(tmp_path / f"two{epoch}", budget)
        with remote_loader(f"{proxy.url}/photos", cache, 5) as loader:
            loader.load_state_dict(state)
            rest = reference.epoch(loader)
            assert sorted(rows + rest) == ALL
            assert sorted(reference.epoch(loader)) == ALL


def test_what_a_shuffled_subset_takes_is_fetched_once(proxy: FaultProxy, tmp_path: Path) -> None:
    picked = np.random.default_rng(0).permutation(ROWS)[: ROWS // 2].tolist()
    with fastio.open(f"{proxy.url}/photos", cache=Cache(tmp_path / "kept", MIB)) as dataset:
        with Loader(Subset(dataset, picked), 8, shuffle=True, seed=0) as loader:
            places = list(loader.sampler)
            found = [row for _, rows in loader for row in rows.tolist()]
        assert found == [picked[place] for place in places]
        assert sorted(places) == list(range(len(picked)))
        assert loader.stats().bytes_fetched < 1.1 * ROWS * noise(0).nbytes


def test_a_shuffled_subset_goes_on_where_its_state_says(proxy: FaultProxy) -> None:
    with fastio.open(f"{proxy.url}/photos") as dataset:
        subset = Subset(dataset, [7, *range(250, 20, -3), 7])
        with Loader(subset, 8, shuffle=True, seed=0, order="window") as loader:
            batches = iter(loader)
            next(batches)
            state, rest = loader.state_dict(), [rows.tolist() for _, rows in batches]
        with Loader(subset, 8, shuffle=True, seed=1) as loader:
            loader.load_state_dict(state)
            assert [rows.tolist() for _, rows in loader] == rest
