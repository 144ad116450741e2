"""Orders are bijections, fixed for all time by (rows, seed, epoch, mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.order import MAX_ROWS, Order


def whole(rows: int, **settings_: Any) -> list[int]:
    return Order(rows, **settings_).at(np.arange(rows)).tolist()


# Written down when the order was first made; a change here breaks every saved loader state.
GOLDEN_SHUFFLE = [2, 7, 8, 5, 1, 0, 9, 4, 3, 6]
GOLDEN_WINDOW = [4, 3, 9, 5, 7, 6, 0, 2, 1, 8]
GOLDEN_LARGE = [2467657926403, 204205290986108, 193218241060509]


def test_the_shuffle_is_the_same_for_ever() -> None:
    assert whole(10, seed=1, epoch=2) == GOLDEN_SHUFFLE


def test_the_window_order_is_the_same_for_ever() -> None:
    assert whole(10, seed=1, epoch=2, mode="window", block=3, window=2) == GOLDEN_WINDOW


def test_the_shuffle_of_many_rows_is_the_same_for_ever() -> None:
    order = Order(MAX_ROWS, seed=7, epoch=3)
    assert order.at([0, 1, MAX_ROWS - 1]).tolist() == GOLDEN_LARGE


def test_the_shuffle_is_a_bijection_for_every_small_number_of_rows() -> None:
    for rows in range(1, 2001):
        assert sorted(whole(rows, seed=rows)) == list(range(rows)), rows


@pytest.mark.parametrize(("block", "window"), [(1, 1), (3, 2), (7, 5), (64, 4), (5000, 3)])
def test_the_window_order_is_a_bijection(block: int, window: int) -> None:
    for rows in [*range(1, 200), 997, 1024, 2000]:
        order = whole(rows, seed=rows, mode="window", block=block, window=window)
        assert sorted(order) == list(range(rows)), rows


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(2, MAX_ROWS),
    seed=st.integers(0, 2**64 - 1),
    mode=st.sampled_from(["shuffle", "window"]),
    block=st.integers(1, 10_000),
    data=st.data(),
)
def test_positions_of_a_huge_epoch_lead_to_different_rows_of_it(
    rows: int, seed: int, mode: Any, block: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, max(0, rows - 1000)))
    positions = np.arange(start, min(start + 1000, rows))
    found = Order(rows, seed=seed, mode=mode, block=block, window=8).at(positions)
    assert found.min() >= 0
    assert found.max() < rows
    assert len(np.unique(found)) == len(positions)


def test_a_window_holds_whole_blocks_only() -> None:
    rows, block, window = 1000, 10, 4
    order = np.array(whole(rows, mode="window", block=block, window=window))
    for start in range(0, rows, block * window):
        blocks = set((order[start : start + block * window] // block).tolist())
        assert len(blocks) == window


def test_each_block_is_in_one_window_when_the_last_block_is_short() -> None:
    rows, block, window = 1003, 10, 4
    order = np.array(whole(rows, seed=5, mode="window", block=block, window=window))
    first = {b: int(np.flatnonzero(order // block == b).min()) for b in range(101)}
    last = {b: int(np.flatnonzero(order // block == b).max()) for b in range(101)}
    assert max(last[b] - first[b] for b in first) < block * window


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(whole(50, seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_sequential_is_the_identity() -> None:
    assert whole(100, mode="sequential") == list(range(100))


def test_every_row_is_about_equally_often_at_every_position() -> None:
    rows, epochs = 16, 4000
    counts = np.zeros((rows, rows))
    for epoch in range(epochs):
        counts[np.arange(rows), whole(rows, seed=9, epoch=epoch)] += 1
    expected = epochs / rows
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    # 225 degrees of freedom: mean 225, standard deviation 21.
    assert 225 - 6 * 21 < chi2 < 225 + 6 * 21


def test_neighbours_do_not_stay_together() -> None:
    order = np.array(whole(100_000, seed=3))
    assert np.count_nonzero(np.diff(order) == 1) < 10  # one expected


def test_no_rows_give_an_empty_order() -> None:
    assert whole(0) == []


@pytest.mark.parametrize("position", [-1, 10, 2**62])
@pytest.mark.parametrize("mode", ["sequential", "shuffle", "window"])
def test_a_position_outside_is_an_error(position: int, mode: Any) -> None:
    with pytest.raises(ValueError, match="position"):
        Order(10, mode=mode).at([0, position])


@pytest.mark.parametrize(
    "bad", [{"rows": -1}, {"rows": MAX_ROWS + 1}, {"mode": "random"}, {"epoch": -1}, {"block": 0}]
)
def test_an_impossible_order_is_an_error(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|at least"):
        Order(**({"rows": 10} | bad))
