"""Partitions: each node reads its own part of the data, and the epoch is that of any ranks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

import fastio
from fastio import Loader, StateMismatch
from fastio.order.buckets import Buckets
from fastio.order.orders import Orders
from fastio.order.partitions import PartitionedOrder
from fastio.order.plan import Plan
from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.stage import Forecast

# Written down when the orders were first made; a change here breaks every saved loader state.
GOLDEN_BLOCKS = [15, 6, 2, 4, 8, 11, 3, 17, 0, 5, 7, 19, 12, 9, 18, 14, 16, 1, 13, 10]
GOLDEN_SHARDS = [10, 2, 8, 7, 11, 5, 9, 6, 0, 4, 1, 3]

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)
STORED = Shuffling("window", "store", "block", 8, 4, fetched_by="node")


def partitioned(rows: int, partitions: int, epoch: int = 0, **how: Any) -> PartitionedOrder:
    given_: dict[str, Any] = {"seed": 3, "mode": "window", "block": 8, "window": 4, **how}
    order = Orders(rows, partitions=partitions, **given_).epoch(epoch)
    assert isinstance(order, PartitionedOrder)
    return order


def walk(order: PartitionedOrder) -> list[int]:
    return order.at(np.arange(order.rows)).tolist()


# --- The order ------------------------------------------------------------------------------------


def test_the_order_is_the_same_for_ever() -> None:
    assert walk(partitioned(20, 3, 2, block=3, window=2)) == GOLDEN_BLOCKS
    assert walk(partitioned(12, 2, 2, bounds=(0, 3, 3, 8, 12), window=1)) == GOLDEN_SHARDS


@given(
    st.integers(1, 600),
    st.integers(2, 9),
    st.integers(1, 40),
    st.sampled_from(["window", "settle"]),
    st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_it_is_a_bijection_whose_partitions_take_turns_and_keep_their_rows(
    rows: int, partitions: int, block: int, mode: Any, epoch: int
) -> None:
    order = partitioned(rows, partitions, epoch, block=block, mode=mode)
    found = walk(order)
    assert sorted(found) == list(range(rows))
    assert order.positions(found).tolist() == list(range(rows))
    first = walk(partitioned(rows, partitions, 0, block=block, mode=mode))
    for number in range(partitions):
        assert sorted(found[number::partitions]) == sorted(first[number::partitions])


@example([0, 1, 0, 0, 0, 0], 3, 1, 0)
@given(SIZES, st.integers(2, 5), st.integers(1, 4), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_windows_of_a_partition_have_the_rows_of_their_shards(
    sizes: list[int], partitions: int, window: int, epoch: int
) -> None:
    bounds = tuple(np.append(0, np.cumsum(sizes)).tolist())
    order = partitioned(bounds[-1], partitions, epoch, bounds=bounds, window=window)
    found = walk(order)
    assert sorted(found) == list(range(bounds[-1]))
    assert order.positions(found).tolist() == list(range(bounds[-1]))
    shard_of = np.repeat(np.arange(len(sizes)), sizes)[found]
    for number in range(partitions):
        begin, last = number, 0
        for end, shards in order.spans([number]):
            assert set(shard_of[begin:end:partitions].tolist()) <= set(shards.tolist())
            begin += -(-(end - begin) // partitions) * partitions
            last = end
        assert last == max(range(number, bounds[-1], partitions), default=-1) + 1


@pytest.mark.parametrize("bounds", [None, (0, 90, 140, 141, 260, 400)])
def test_a_block_is_needed_next_within_the_window_that_is_told(bounds: Any) -> None:
    order = partitioned(400, 3, 1, block=10, bounds=bounds)
    cuts = np.arange(0, 410, 10) if bounds is None else np.array(bounds)
    positions = order.positions(np.arange(400))
    begins, ends = order.window_of(np.arange(len(cuts) - 1))
    for unit, (first, last) in enumerate(pairwise(cuts.tolist())):
        assert begins[unit] <= positions[first:last].min()
        assert positions[first:last].max() < ends[unit]


@pytest.mark.parametrize(
    ("rows", "partitions", "block", "bounds"),
    [(100, 7, 50, None), (1000, 16, 256, None), (90, 8, 1, (0, 40, 50, 90))],
)
def test_a_block_that_contains_partitions_is_needed_in_all_of_their_positions(
    rows: int, partitions: int, block: int, bounds: Any
) -> None:
    order = PartitionedOrder(
        rows, 3, 0, mode="window", block=block, window=2, partitions=partitions, bounds=bounds
    )
    cuts = [*range(0, rows, block), rows] if bounds is None else list(bounds)
    begins, ends = order.window_of(np.arange(len(cuts) - 1))
    for unit, (first, last) in enumerate(pairwise(cuts)):
        positions = order.positions(np.arange(first, last))
        assert begins[unit] <= positions.min()
        assert positions.max() < ends[unit]


@pytest.mark.parametrize("mode", ["window", "settle"])
def test_other_processes_learn_of_partitions_from_the_forecast(mode: Any) -> None:
    orders = Orders(400, 3, mode, 10, 4, None, 4)
    forecast = Forecast.of_text(Forecast(orders, 1, 10).text)
    order = orders.epoch(1)
    found = forecast.next_use(100, 100, np.arange(40))
    needed = [order.positions(np.arange(b * 10, b * 10 + 10)) for b in range(40)]
    for block, positions in enumerate(needed):
        later = positions[positions >= 100]
        if later.size and later.min() > 100:
            assert found[block] <= later.min() - 100


def test_a_trillion_rows_cost_nothing() -> None:
    order = partitioned(10**12, 1000, 5, block=40, window=32)
    positions = np.arange(10**11 * 7, 10**11 * 7 + 256_000, 1000)
    rows = order.at(positions)
    assert order.positions(rows).tolist() == positions.tolist()
    assert len(np.unique(rows // 40)) <= 64  # two windows at most


# --- The batches ----------------------------------------------------------------------------------


def batches(order: Any, size: int, world: int, start: int = 0) -> list[list[list[int]]]:
    """Returns the rows that count, by step and rank."""
    plans = [Plan(order, size, False, rank, world, start) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    steps = list(zip(*plans, strict=True))
    for step in steps:
        assert len({len(batch.rows) for batch in step}) == 1
    return [[batch.rows[: batch.valid].tolist() for batch in step] for step in steps]


@given(
    st.integers(1, 300), st.integers(2, 8), st.integers(1, 9), st.integers(1, 12), st.integers(0, 4)
)
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_whatever_the_ranks(
    rows: int, partitions: int, size: int, world: int, start: int
) -> None:
    order = partitioned(rows, partitions)
    start = min(start, rows)
    found = [row for step in batches(order, size, world, start) for rank in step for row in rank]
    assert sorted(found) == sorted(walk(order)[start:])


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12, 24])
def test_a_step_has_the_same_samples_for_any_ranks(world: int) -> None:
    order = partitioned(1000, 6)
    expected = [sorted(walk(order)[at : at + 24]) for at in range(0, 1000, 24)]
    found = batches(order, 24 // world, world)
    assert [sorted(row for rank in step for row in rank) for step in found] == expected


@pytest.mark.parametrize(("partitions", "world"), [(4, 4), (4, 8), (4, 2), (4, 1), (2, 8)])
def test_full_batches_of_a_rank_are_of_its_partitions(partitions: int, world: int) -> None:
    order = partitioned(1600, partitions)
    own = [set(walk(order)[number::partitions]) for number in range(partitions)]
    for step in batches(order, 8, world):
        for rank, rows in enumerate(step):
            shares = [own[number] for number in Ranks(rank, world).share_of(partitions)]
            assert set(rows) <= set().union(*shares)


def test_padding_is_of_the_rank_s_own_partition() -> None:
    order = partitioned(803, 4)
    own = [set(walk(order)[number::4]) for number in range(4)]
    for rank in range(8):
        *_, last = Plan(order, 10, False, rank, 8)
        assert set(last.rows[last.valid :].tolist()) <= own[rank // 2]


# --- How many there are ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "ranks", "partitions"),
    [
        (Sampling(4, True, shuffling=STORED), Ranks(0, 8, 1), 1),
        (Sampling(4, True, shuffling=STORED), Ranks(0, 8, 2), 2),
        (Sampling(4, True, shuffling=STORED, partitions=16), Ranks(0, 8, 2), 16),
        (Sampling(4, True, shuffling=STORED, partitions=16), Ranks(), 16),
        (Sampling(4, True, shuffling=STORED, repeat=2), Ranks(0, 8, 2), 2),
        (Sampling(4, True, shuffling=STORED, buckets=Buckets(np.ones(9), 2)), Ranks(0, 8, 2), 2),
        (Sampling(4, shuffling=STORED), Ranks(0, 8, 2), 1),
        (Sampling(4, order="shuffle", shuffling=STORED), Ranks(0, 8, 2), 1),
        (Sampling(4, True, shuffling=Shuffling("window", block=8, window=4)), Ranks(0, 8, 2), 1),
    ],
)
def test_data_in_a_store_has_a_partition_for_each_node(
    sampling: Sampling, ranks: Ranks, partitions: int
) -> None:
    assert sampling.partitions_of(ranks) == partitions


def test_without_a_cache_each_rank_has_a_partition() -> None:
    by_rank = Shuffling("window", "store", "block", 8, 4, fetched_by="rank")
    sampling = Sampling(4, True, shuffling=by_rank)
    assert sampling.partitions_of(Ranks(0, 8, 2)) == 8
    assert sampling.partitions_of(Ranks(0, 8, 1)) == 1


@pytest.mark.parametrize(
    ("variables", "nodes"),
    [
        ({}, 1),
        ({"GROUP_WORLD_SIZE": "4"}, 4),
        ({"GROUP_WORLD_SIZE": "3"}, 1),  # nodes with different numbers of ranks
        ({"GROUP_WORLD_SIZE": "many"}, 1),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "8"}, 2),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}, 1),
    ],
)
def test_the_launcher_tells_the_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], nodes: int, remote: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with loader(remote, 0, 8, cache=None) as one:
        assert one.state_dict()["order"]["partitions"] == (1 if nodes == 1 else 8)


@pytest.mark.parametrize("bad", [0, -1, 2.0, "2"])
def test_an_impossible_number_of_partitions_is_an_error(bad: Any, remote: str) -> None:
    with pytest.raises(ValueError, match="partitions must be an integer of at least 1"):
        fastio.open(remote, partitions=bad)


# --- The loader -----------------------------------------------------------------------------------

ROWS = 300


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (ROWS, 32, 32, 3), np.uint8)
    url = "memory://partitions/packed"
    fastio.pack([(image, index) for index, image in enumerate(images)], url, codec="raw")
    return url


def loader(url: Any, rank: int, world: int, size: int = 4, **options: Any) -> Loader:
    how = {"shuffle": True, "seed": 5, "fields": ["label"], **options}
    return Loader(url, size, rank=rank, world_size=world, **how)


def rest(url: Any, world: int, size: int, state: Any, **options: Any) -> list[list[int]]:
    """Returns the rows of each step that is left, over all ranks."""
    ranks = []
    for rank in range(world):
        with loader(url, rank, world, size, **options) as one:
            if state is not None:
                one.load_state_dict(state)
            ranks.append([one.batch.rows[: one.batch.valid].tolist() for _ in one])
    return [sorted(row for rows in step for row in rows) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize(
    ("world", "nodes"),
    [(4, 2), (1, 1), *(pytest.param(*n, marks=pytest.mark.long) for n in ((4, 1), (16, 8)))],
)
def test_a_run_of_four_nodes_goes_on_exactly_with_other_nodes(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, nodes: int
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "4")
    cache = {"cache": tmp_path / "cache"}
    whole = rest(remote, 8, 2, None, **cache)
    assert sorted(row for step in whole for row in step) == list(range(ROWS))
    with loader(remote, 3, 8, 2, **cache) as one:
        steps = iter(one)
        for _ in range(7):
            next(steps)
        state = one.state_dict()
    assert state["order"]["partitions"] == 4
    monkeypatch.setenv("GROUP_WORLD_SIZE", str(nodes))
    assert rest(remote, world, 16 // world, state, **cache) == whole[7:]


def test_a_state_of_one_node_goes_on_exactly_on_several(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rest(remote, 2, 8, None)
    with loader(remote, 0, 2, 8) as one:
        next(iter(one))
        state = one.state_dict()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert rest(remote, 4, 4, state) == whole[1:]


def test_remote_datasets_one_after_the_other_go_on_with_other_nodes(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fastio.open(remote) as one:
        joined: Any = ConcatDataset([one, Subset(one, range(100))])
        monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
        whole = rest(joined, 4, 4, None)
        assert sum(map(len, whole)) == ROWS + 100
        with loader(joined, 1, 4, 4) as first:
            next(iter(first))
            state = first.state_dict()
        assert state["order"]["partitions"] == 4  # without a cache, one for each rank
        monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
        assert rest(joined, 2, 8, state) == whole[1:]


def test_another_number_of_partitions_that_was_asked_for_is_refused(remote: str) -> None:
    with fastio.open(remote, partitions=2) as data, loader(data, 0, 2) as one:
        state = one.state_dict()
    with (
        fastio.open(remote, partitions=4) as data,
        loader(data, 0, 2) as one,
        pytest.raises(StateMismatch, match="'partitions'"),
    ):
        one.load_state_dict(state)


def test_datasets_one_after_the_other_have_the_partitions_with_which_they_were_opened(
    remote: str,
) -> None:
    with fastio.open(remote, partitions=3) as one, fastio.open(remote) as other:
        with loader(ConcatDataset([one, other]), 0, 2) as both:
            assert both.state_dict()["order"]["partitions"] == 3
        with pickle.loads(pickle.dumps(one)) as again, loader(again, 0, 2) as same:
            assert same.state_dict()["order"]["partitions"] == 3
        with (
            fastio.open(remote, partitions=2) as two,
            pytest.raises(ValueError, match="different numbers of partitions, 2 and 3"),
        ):
            loader(ConcatDataset([one, two]), 0, 2)


def test_a_loader_says_what_partitions_cost(remote: str) -> None:
    with fastio.open(remote, partitions=2) as data, loader(data, 0, 2) as one:
        told = one.stats().order
    assert "equally many rows of each of 2 partitions" in told
    assert "the same partition in every epoch" in told


def test_local_data_is_shuffled_as_a_whole_on_any_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    fastio.pack([{"x": index} for index in range(40)], tmp_path / "local")
    with Loader(tmp_path / "local", 4, True, seed=1, rank=0, world_size=2) as one:
        assert one.state_dict()["order"]["partitions"] == 1
