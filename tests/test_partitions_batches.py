"""Partitions with rows that are repeated, and with batches of similar lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastio
from fastio import Loader
from fastio.order.buckets import BucketPlan, Buckets
from fastio.order.orders import AnyOrder, Orders
from fastio.order.plan import Plan, PlannedBatch
from fastio.order.sampling import Ranks
from fastio.stage import Forecast, StagingPlan
from fastio.stage.lookahead import _windows
from tests.servers import FaultProxy, http_folder

Sample = tuple[int, int]  # a row, and the number of its copy

CUTS = st.one_of(
    st.none(), st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda n: sum(n) > 0)
)


def order_of(rows: int, sizes: list[int] | None, partitions: int, epoch: int) -> AnyOrder:
    """Returns an order by blocks, or by shards with these numbers of rows."""
    bounds = None if sizes is None else tuple(np.append(0, np.cumsum(sizes)).tolist())
    rows = rows if bounds is None else bounds[-1]
    return Orders(rows, 7, "window", 8, 3, bounds, partitions).epoch(epoch)


def samples(batch: PlannedBatch) -> list[Sample]:
    """Returns the samples of a batch that count."""
    copies = np.zeros(len(batch.rows), int) if batch.occurrences is None else batch.occurrences
    return list(zip(batch.rows.tolist(), copies.tolist(), strict=True))[: batch.valid]


def steps_of(
    order: AnyOrder, size: int, world: int, start: int, repeat: int = 1, pool: int = 0
) -> list[list[Sample]]:
    """Returns the samples of each step, over all ranks; `pool` > 0 for similar lengths."""
    lengths = np.random.default_rng(order.rows).integers(1, 100, order.rows)
    steps: list[list[Sample]] = []
    for rank in range(world):
        plan: Any = Plan(order, size, False, rank, world, start, repeat)
        if pool:
            plan = BucketPlan(plan, Buckets(lengths, pool))
        batches = list(plan)
        assert len(batches) == len(plan)
        assert [batch.step for batch in batches] == list(range(len(plan)))
        steps = steps or [[] for _ in batches]
        for step, batch in zip(steps, batches, strict=True):
            step += samples(batch)
    return [sorted(step) for step in steps]


@given(
    st.integers(1, 300), CUTS, st.integers(1, 8), st.integers(0, 2), st.integers(1, 6),
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(0, 4), st.integers(0, 40),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_a_run_stopped_anywhere_goes_on_with_the_samples_that_are_left(
    rows: int, sizes: list[int] | None, partitions: int, epoch: int, size: int, world: int,
    later: int, repeat: int, pool: int, stop: int,
) -> None:  # fmt: skip
    order = order_of(rows, sizes, partitions, epoch)
    repeat = 1 if pool else repeat
    batch = size * world * later  # of all ranks: `later` ranks can have it too
    whole = steps_of(order, size * later, world, 0, repeat, pool)
    everything = [sample for step in whole for sample in step]
    assert len(everything) == len(set(everything)) == order.rows
    copies = Counter(row for row, _ in everything)
    if repeat == 1:
        assert sorted(copies) == list(range(order.rows))
    # Each partition, whose rows take turns, may have one row with fewer copies: its last one.
    assert sum(count < repeat for count in copies.values()) <= partitions
    stop = min(stop, len(whole))
    rest = steps_of(order, size * world, later, min(stop * batch, order.rows), repeat, pool)
    assert rest == whole[stop:]


@pytest.mark.parametrize(("repeat", "pool"), [(1, 0), (2, 0), (3, 0), (4, 0), (1, 3)])
@pytest.mark.parametrize(("partitions", "world"), [(4, 4), (4, 8), (4, 2), (6, 3), (2, 8)])
def test_a_rank_reads_its_own_partitions_only(
    partitions: int, world: int, repeat: int, pool: int
) -> None:
    order = order_of(1920, None, partitions, 1)
    own = [set(order.at(np.arange(n, 1920, partitions)).tolist()) for n in range(partitions)]
    lengths = np.random.default_rng(0).integers(1, 100, order.rows)
    for rank in range(world):
        plan: Any = Plan(order, 24, False, rank, world, 0, repeat)
        share = set().union(*(own[number] for number in Ranks(rank, world).share_of(partitions)))
        for batch in BucketPlan(plan, Buckets(lengths, pool)) if pool else plan:
            assert set(batch.rows.tolist()) <= share


@pytest.mark.parametrize("repeat", [2, 3, 4])
def test_ranks_of_a_partition_get_different_copies(repeat: int) -> None:
    order = order_of(1920, None, 2, 1)
    for step in range(10):
        found = [
            samples(Plan(order, 24, False, rank, 8, 0, repeat).batch(step)) for rank in range(8)
        ]
        for rank in found:
            assert len({row for row, _ in rank}) == len(rank)


def test_global_batches_have_similar_lengths() -> None:
    order = order_of(4000, None, 4, 0)
    lengths = np.random.default_rng(0).integers(1, 1000, 4000)
    spreads = {}
    for pool in (0, 20):
        found = []
        plans = [Plan(order, 5, False, rank, 8) for rank in range(8)]
        batches: list[Any] = [BucketPlan(p, Buckets(lengths, pool)) if pool else p for p in plans]
        for ranks in zip(*batches, strict=True):
            found.append(np.ptp(lengths[np.concatenate([batch.rows for batch in ranks])]))
        spreads[pool] = np.mean(found)
    assert spreads[20] < spreads[0] / 4


class _Asked:
    """Lengths that note which rows are asked for."""

    def __init__(self, rows: int) -> None:
        self.lengths, self.rows = np.arange(rows) % 17, set[int]()

    def __getitem__(self, rows: Any, /) -> Any:
        self.rows |= set(rows.tolist())
        return self.lengths[rows]


def test_a_rank_asks_for_lengths_of_its_own_partition_only() -> None:
    order = order_of(1600, None, 4, 2)
    asked = _Asked(1600)
    for _ in BucketPlan(Plan(order, 10, False, 5, 8), Buckets(asked, 5)):
        pass
    assert asked.rows == set(order.at(np.arange(2, 1600, 4)).tolist())


def test_shards_are_held_until_the_last_batch_of_their_pool() -> None:
    sizes = [20] * 12
    bounds = tuple(np.append(0, np.cumsum(sizes)).tolist())
    orders = Orders(240, 7, "window", 8, 1, bounds, 2)
    order = orders.epoch(0)
    plan = BucketPlan(Plan(order, 6, False, 0, 2), Buckets(np.arange(240) * 7 % 31, 3))
    forecast = Forecast(orders, 0, 0)
    windows = _windows(StagingPlan(forecast, 0, 1 << 20, None, range(1), plan.pool_rows))
    ends = {int(shard): end for end, shards in windows for shard in shards}
    for batch in plan:
        shards = set((batch.rows // 20).tolist())
        assert all(ends[shard] >= batch.next_position for shard in shards)


# --- The loader -----------------------------------------------------------------------------------

ROWS = 240
DOCUMENTS = 900


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    url = "memory://partitions-batches/packed"
    pixels = rng.integers(0, 256, (ROWS, 32, 32, 3), np.uint8)
    fastio.pack([(image, index) for index, image in enumerate(pixels)], url, codec="raw")
    return url


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("partitions") / "documents"
    schema = fastio.Schema({"tokens": fastio.Tokens("uint16"), "row": fastio.Scalar("int64")})
    rng = np.random.default_rng(0)
    with fastio.Writer(path, schema, shard_size=16 << 10) as writer:
        for row in range(DOCUMENTS):
            writer.write({"tokens": rng.integers(0, 999, rng.integers(1, 300)), "row": row})
    return path


def rest(open_data: Any, world: int, size: int, state: Any, **options: Any) -> list[list[Sample]]:
    """Returns the samples of each step that is left, over all ranks."""
    ranks = []
    for rank in range(world):
        how = {"shuffle": True, "seed": 5, "rank": rank, "world_size": world, **options}
        with open_data() as data, Loader(data, size, **how) as one:
            if state is not None:
                one.load_state_dict(state)
            ranks.append([])
            for _ in one:
                rows, copies = one.batch.rows, one.batch.occurrences
                assert rows is not None
                copies = np.zeros(len(rows), int) if copies is None else copies
                pairs = zip(rows.tolist(), copies.tolist(), strict=True)
                ranks[-1].append(list(pairs)[: one.batch.valid])
    return [sorted(s for part in step for s in part) for step in zip(*ranks, strict=True)]


def state_after(open_data: Any, steps: int, world: int, size: int, **options: Any) -> Any:
    how = {"shuffle": True, "seed": 5, "rank": 1, "world_size": world, **options}
    with open_data() as data, Loader(data, size, **how) as one:
        batches = iter(one)
        for _ in range(steps):
            next(batches)
        return one.state_dict()


@pytest.mark.parametrize(("world", "nodes"), [(4, 2), (1, 1)])
def test_repeated_images_of_four_nodes_go_on_with_other_nodes(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, nodes: int
) -> None:
    def opened() -> Any:
        return fastio.open(images, cache=tmp_path / "cache")

    how: dict[str, Any] = {"fields": ["label"], "repeat": 3}
    monkeypatch.setenv("GROUP_WORLD_SIZE", "4")
    whole = rest(opened, 8, 2, None, **how)
    assert sum(map(len, whole)) == ROWS
    state = state_after(opened, 4, 8, 2, **how)
    assert state["order"]["partitions"] == 4
    monkeypatch.setenv("GROUP_WORLD_SIZE", str(nodes))
    assert rest(opened, world, 16 // world, state, **how) == whole[4:]


@pytest.fixture
def proxy(documents: Path) -> Iterator[FaultProxy]:
    with http_folder(documents) as url, FaultProxy(url) as one:
        yield one


def test_documents_of_similar_lengths_are_fetched_once_and_go_on_with_other_nodes(
    proxy: FaultProxy, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> Any:
        return fastio.TokenPad(fastio.open(proxy.url), 200, pool=4)

    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    whole = rest(opened, 2, 8, None)
    assert sorted(row for step in whole for row, _ in step) == list(range(DOCUMENTS))
    sizes = [path.stat().st_size for path in documents.glob("shard-*")]
    # Each rank has a partition of its own: they share the shard at its end, and each begins the
    # next epoch.
    assert sum(sizes) <= proxy.sent("shard-") <= sum(sizes) + 12 * max(sizes)
    state = state_after(opened, 9, 2, 8)
    assert state["order"]["partitions"] == 2
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    assert rest(opened, 1, 16, state) == whole[9:]
    assert rest(opened, 4, 4, state) == whole[9:]


def test_a_loader_of_similar_lengths_does_not_read_all_documents_first(proxy: FaultProxy) -> None:
    data = fastio.TokenPad(fastio.open(proxy.url), 200, pool=1)
    with Loader(data, 8, shuffle=True, seed=0, num_workers=1):
        assert not proxy.answers("shard-")


class _Failing(_Asked):
    """Lengths that cannot be read at first."""

    failures = 3

    def __getitem__(self, rows: Any, /) -> Any:
        if self.failures:
            self.failures -= 1
            raise fastio.StoreError("the store does not answer")
        return super().__getitem__(rows)


def test_no_batch_is_lost_if_lengths_cannot_be_read_for_some_time() -> None:
    lengths = _Failing(100)
    batches = iter(BucketPlan(Plan(order_of(100, None, 1, 0), 10), Buckets(lengths, 3)))
    for _ in range(3):
        with pytest.raises(fastio.StoreError):
            next(batches)
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(100))
