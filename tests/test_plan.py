"""Plans cut the same global order for any number of ranks, from any position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.order.order import Order
from fastio.order.plan import Plan, follow


def rank_rows(order: Order, batch: int, world: int, *, drop: bool, start: int = 0) -> list[Plan]:
    return [Plan(order, batch, drop, rank, world, start) for rank in range(world)]


def valid_rows(plan: Plan) -> list[int]:
    return [row for batch in plan for row in batch.rows[: batch.valid].tolist()]


@settings(max_examples=300, deadline=None)
@given(
    rows=st.integers(0, 500),
    batch=st.integers(1, 40),
    world=st.integers(1, 16),
    drop=st.booleans(),
    data=st.data(),
)
def test_ranks_partition_an_epoch(
    rows: int, batch: int, world: int, drop: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, rows))
    order = Order(rows, seed=1)
    plans = rank_rows(order, batch, world, drop=drop, start=start)
    seen = [row for plan in plans for row in valid_rows(plan)]
    left = order.at(np.arange(start, rows)).tolist()
    expected = left[: len(left) // (batch * world) * batch * world] if drop else left
    assert sorted(seen) == sorted(expected)


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 300), batch=st.integers(1, 20), world=st.integers(1, 16))
def test_every_rank_makes_equal_steps_of_equal_size(rows: int, batch: int, world: int) -> None:
    plans = rank_rows(Order(rows), batch, world, drop=False)
    assert len({len(plan) for plan in plans}) == 1
    for step in range(len(plans[0])):
        assert len({len(plan.batch(step).rows) for plan in plans}) == 1


@pytest.mark.parametrize("world", range(1, 65))
def test_the_global_order_is_the_same_for_any_world_size(world: int) -> None:
    batch = 3
    order = Order(batch * world * 3 + 1, seed=4)
    plans = rank_rows(order, batch, world, drop=True)
    merged = [
        row
        for step in range(len(plans[0]))
        for plan in plans
        for row in plan.batch(step).rows.tolist()
    ]
    assert merged == order.at(np.arange(batch * world * 3)).tolist()


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16, 32, 64])
def test_a_step_has_the_same_samples_for_any_split_of_a_global_batch(world: int) -> None:
    order = Order(1000, seed=2)
    plans = rank_rows(order, 64 // world, world, drop=False)
    single = Plan(order, 64)
    for step in range(len(single)):
        merged = [row for p in plans for row in p.batch(step).rows[: p.batch(step).valid].tolist()]
        assert merged == single.batch(step).rows.tolist()


def test_resuming_at_every_position_gives_the_rest_of_the_epoch() -> None:
    order = Order(101, seed=6)
    everything = order.at(np.arange(101)).tolist()
    for position in range(102):
        assert valid_rows(Plan(order, 7, start=position)) == everything[position:]


@settings(max_examples=50, deadline=None)
@given(position=st.integers(0, 10**9), world=st.integers(1, 64))
def test_resuming_within_a_large_epoch_gives_the_next_samples(position: int, world: int) -> None:
    order = Order(10**9 + 7, seed=6)
    start = min(position, order.rows - 8 * world)
    plans = rank_rows(order, 8, world, drop=False, start=start)
    first = [row for plan in plans for row in plan.batch(0).rows.tolist()]
    assert first == order.at(np.arange(start, start + 8 * world)).tolist()
    assert plans[0].batch(0).next_position == start + 8 * world


def test_padding_repeats_rows_of_the_epoch_and_is_told() -> None:
    plans = rank_rows(Order(10, mode="sequential"), 4, 4, drop=False)
    batches = [plan.batch(0) for plan in plans]
    assert [batch.rows.tolist() for batch in batches] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 0, 1],
    ]
    assert [batch.valid for batch in batches] == [3, 3, 3, 1]
    assert {batch.next_position for batch in batches} == {10}


def test_fewer_rows_than_ranks_still_give_every_rank_a_batch() -> None:
    plans = rank_rows(Order(2, mode="sequential"), 4, 5, drop=False)
    assert [plan.batch(0).rows.tolist() for plan in plans] == [[0], [1], [0], [1], [0]]
    assert [plan.batch(0).valid for plan in plans] == [1, 1, 0, 0, 0]


def test_an_empty_dataset_has_no_batches() -> None:
    assert list(Plan(Order(0), 4)) == []


def test_a_billion_rows_cost_nothing_to_plan() -> None:
    plan = Plan(Order(2**48, seed=1), 256, world_size=64, rank=63)
    assert len(plan) == 2**48 // (256 * 64)
    assert plan.batch(len(plan) - 1).next_position == 2**48


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"rank": 2, "world_size": 2}, {"start": 11}])
def test_an_impossible_plan_is_an_error(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|is not in"):
        Plan(**({"order": Order(10), "batch_size": 2} | bad))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 16, 300, 600, 2000])
def test_small_batches_say_which_rows_they_are_looked_up_with(batch: int) -> None:
    plan = Plan(Order(5000, seed=3), batch, start=7)
    for planned in plan:
        assert np.array_equal(planned.rows, plan.batch(planned.step).rows)
        if planned.together is not None:
            last = planned.first + len(planned.rows)
            assert np.array_equal(planned.together.rows[planned.first : last], planned.rows)
    assert (next(iter(plan)).together is None) == (batch > 512)


def test_following_a_sampler_keeps_its_rows_and_counts() -> None:
    planned = list(follow([[3, 1], [2], []], rows=4, start=5))
    assert [batch.rows.tolist() for batch in planned] == [[3, 1], [2], []]
    assert [batch.next_position for batch in planned] == [7, 8, 8]


def test_following_a_sampler_understands_negative_rows() -> None:
    assert next(follow([[-1, 0]], rows=4)).rows.tolist() == [3, 0]


@pytest.mark.parametrize("key", [1.7, np.float64(2), "1", [1, 2], torch.tensor([1, 2]), None])
def test_a_sampler_s_key_that_is_no_integer_is_an_error_as_for_a_list(key: Any) -> None:
    with pytest.raises(TypeError, match="no row number"):
        list(follow([[0, key]], rows=4))


def test_a_sampler_that_leaves_the_dataset_is_an_error() -> None:
    with pytest.raises(IndexError, match="gave row 4, but the dataset has 4 rows"):
        list(follow([[0, 4]], rows=4))
