"""Orders by windows of shards: bijections, and when which shard is needed is arithmetic."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.order.order import ShardOrder
from fastio.order.orders import Orders
from fastio.stage import Forecast

# Written down when the order was first made; a change here breaks every saved loader state.
GOLDEN = [4, 6, 7, 5, 3, 2, 8, 1, 0, 9]

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


def bounds_of(sizes: list[int]) -> tuple[int, ...]:
    return tuple(np.append(0, np.cumsum(sizes)).tolist())


def test_the_order_is_the_same_for_ever() -> None:
    order = ShardOrder((0, 3, 3, 8, 10), seed=1, epoch=2, window=2)
    assert order.at(np.arange(10)).tolist() == GOLDEN


@given(SIZES, st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_it_is_a_bijection_within_windows_of_whole_shards(
    sizes: list[int], window: int, epoch: int
) -> None:
    bounds = bounds_of(sizes)
    order = ShardOrder(bounds, 5, epoch, window)
    walk = order.at(np.arange(order.rows))
    assert sorted(walk.tolist()) == list(range(sum(sizes)))
    assert order.positions(walk).tolist() == list(range(sum(sizes)))
    shard_of = np.repeat(np.arange(len(sizes)), sizes)[walk]
    begins, ends = order.window_of(np.arange(len(sizes)))
    for shard in range(len(sizes)):
        places = np.flatnonzero(shard_of == shard)
        assert len(places) == sizes[shard]
        assert all(begins[shard] <= place < ends[shard] for place in places.tolist())
    begin = 0
    for end, shards in order.spans():
        assert len(shards) <= window
        assert set(shard_of[begin:end].tolist()) <= set(shards.tolist())
        begin = end
    assert begin == sum(sizes)


def test_epochs_and_seeds_differ() -> None:
    bounds = bounds_of([50] * 8)
    orders = [ShardOrder(bounds, *key, 2) for key in ((0, 0), (0, 1), (1, 0))]
    walks = {tuple(order.at(np.arange(400)).tolist()) for order in orders}
    assert len(walks) == 3


@pytest.mark.parametrize("rows", [[-1], [10]])
def test_what_is_out_of_range_is_an_error(rows: list[int]) -> None:
    order = ShardOrder((0, 4, 10), 0, 0, 2)
    with pytest.raises(ValueError, match="position"):
        order.at(rows)
    with pytest.raises(ValueError, match="row"):
        order.positions(rows)


@given(SIZES, st.integers(1, 4), st.sampled_from(["window", "sequential", "shuffle"]), st.data())
@settings(max_examples=100, deadline=None)
def test_a_shards_next_use_is_what_walking_through_two_epochs_finds(
    sizes: list[int], window: int, mode: Literal["window", "sequential", "shuffle"], data: Any
) -> None:
    bounds = bounds_of(sizes)
    rows = bounds[-1]
    orders = Orders(rows, 3, mode, window=window, bounds=bounds)
    forecast = Forecast.of_text(Forecast(orders, 1, 0).text)
    position = data.draw(st.integers(0, rows - 1))
    found = forecast.next_use(position, position, np.arange(len(sizes) + 2))
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    walk = np.concatenate([shard_of[orders.epoch(epoch).at(np.arange(rows))] for epoch in (1, 2)])
    for shard, size in enumerate([*sizes, 0, 0]):
        if size == 0:
            assert found[shard] == np.inf
            continue
        first = int(np.flatnonzero(walk[position:] == shard)[0])
        if mode == "window":  # a shard counts as needed as long as its window lasts
            begins, ends = orders.epoch(1).window_of([shard])
            if ends[0] <= position:
                begins = orders.epoch(2).window_of([shard])[0] + rows
            first = max(0, int(begins[0]) - position)
        assert found[shard] == (-1 if first <= 0 else first)
