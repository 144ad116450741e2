"""Orders are bijections, fixed for all time by (rows, seed, epoch, mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio import _native
from fastio.order.order import MAX_ROWS, Order


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


@pytest.mark.parametrize("mode", ["sequential", "shuffle", "window"])
def test_a_span_is_what_its_positions_give(mode: Any) -> None:
    for rows in (1, 255, 5000, 2**32 + 7):
        order = Order(rows, 3, 2, mode, 16, 4)
        for first, count in ((0, 0), (0, 1), (rows // 2, min(rows - rows // 2, 3000)), (rows, 0)):
            expected = order.at(np.arange(first, first + count, dtype=np.int64))
            np.testing.assert_array_equal(order.span(first, count), expected)


@pytest.mark.parametrize("mode", ["sequential", "shuffle", "window"])
@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 11), (10, 1), (11, 0), (0, -1)])
def test_a_span_outside_is_an_error(mode: Any, first: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"not in \[0, 10\)"):
        Order(10, 0, 0, mode).span(first, count)


def test_neighbours_do_not_stay_together() -> None:
    order = np.array(whole(100_000, seed=3))
    assert np.count_nonzero(np.diff(order) == 1) < 10  # one expected


def test_no_rows_give_an_empty_order() -> None:
    assert whole(0) == []


MODES = ["sequential", "shuffle", "window"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("block", "window"), [(1, 1), (3, 2), (64, 64), (5000, 3)])
def test_positions_is_the_inverse_of_at(mode: Any, block: int, window: int) -> None:
    for rows in [*range(1, 130), 997, 1024, 5003]:
        order = Order(rows, seed=rows, epoch=1, mode=mode, block=block, window=window)
        every = np.arange(rows)
        assert order.positions(order.at(every)).tolist() == every.tolist(), rows
        assert order.at(order.positions(every)).tolist() == every.tolist(), rows


def rows_and_ends(draw: st.DataObject, rows: int) -> Any:
    """Some of [0, rows), not sorted, with both ends."""
    some = draw.draw(st.lists(st.integers(0, rows - 1), max_size=200))
    return np.array([rows - 1, *some, 0], np.int64)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, MAX_ROWS) | st.integers(MAX_ROWS - 3, MAX_ROWS) | st.integers(1, 300),
    seed=st.integers(0, 2**64 - 1),
    mode=st.sampled_from(MODES),
    block=st.integers(1, 10_000) | st.integers(1, MAX_ROWS),
    window=st.integers(1, 100) | st.integers(1, 2**64 - 1),
    data=st.data(),
)
def test_positions_of_any_rows_lead_back_to_them(
    rows: int, seed: int, mode: Any, block: int, window: int, data: st.DataObject
) -> None:
    order = Order(rows, seed=seed, mode=mode, block=block, window=window)
    wanted = rows_and_ends(data, rows)
    found = order.positions(wanted)
    assert found.min() >= 0
    assert found.max() < rows
    assert order.at(found).tolist() == wanted.tolist()


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, MAX_ROWS) | st.integers(1, 300),
    seed=st.integers(0, 2**64 - 1),
    mode=st.sampled_from(MODES),
    block=st.integers(1, 100) | st.integers(1, 2**62),
    window=st.integers(1, 100) | st.integers(1, 2**64 - 1),
    data=st.data(),
)
def test_a_block_stands_within_its_window(
    rows: int, seed: int, mode: Any, block: int, window: int, data: st.DataObject
) -> None:
    order = Order(rows, seed=seed, mode=mode, block=block, window=window)
    wanted = rows_and_ends(data, rows)
    begins, ends = order.window_of(wanted // block)
    positions = order.positions(wanted)
    assert (begins <= positions).all()
    assert (positions < ends).all()
    assert begins.min() >= 0
    assert ends.max() <= rows


@pytest.mark.parametrize("rows", [1, 9, 10, 11, 395, 400, 401, 1003])
def test_windows_follow_each_other_and_have_whole_blocks(rows: int) -> None:
    short = set()
    for seed in range(40):  # the short last block comes into any slot
        order = Order(rows, seed=seed, mode="window", block=10, window=4)
        begins, ends = order.window_of(np.arange(order.blocks))
        assert order.blocks == -(-rows // 10)
        spans = sorted(set(zip(begins.tolist(), ends.tolist(), strict=True)))
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == rows
        for begin, end in spans:
            inside = np.flatnonzero((begins == begin) & (ends == end))
            assert len(inside) == 4 or end == rows
            rows_inside = np.concatenate(
                [np.arange(b * 10, min(b * 10 + 10, rows)) for b in inside.tolist()]
            )
            assert sorted(order.at(np.arange(begin, end)).tolist()) == rows_inside.tolist()
        short.add(int(begins[-1]) // 40)
    assert len(short) > len(spans) // 2


def test_a_shuffled_block_may_stand_anywhere_and_a_sequential_one_stands_still() -> None:
    begins, ends = Order(25, block=10).window_of([2, 0])
    assert (begins.tolist(), ends.tolist()) == ([0, 0], [25, 25])
    begins, ends = Order(25, block=10, mode="sequential").window_of([2, 0])
    assert (begins.tolist(), ends.tolist()) == ([20, 0], [25, 10])


@pytest.mark.parametrize("level", _native.simd_levels())
@pytest.mark.parametrize("mode", ["shuffle", "window"])
def test_every_instruction_set_has_the_same_order(level: str, mode: Any) -> None:
    for rows in (1, 5, 255, 256, 257, 1000, 2**32 + 1, MAX_ROWS):
        order = Order(rows, seed=4, mode=mode, block=7, window=9)
        positions = np.unique(np.linspace(0, rows - 1, 1111).astype(np.int64))
        one_by_one = [int(order.at([position])[0]) for position in positions]  # has no kernel
        _native.simd_force(level)
        try:
            assert order.at(positions).tolist() == one_by_one
            assert order.positions(one_by_one).tolist() == positions.tolist()
        finally:
            _native.simd_force(_native.simd_levels()[-1])


@pytest.mark.parametrize("outside", [-1, 10, 2**62])
@pytest.mark.parametrize("mode", MODES)
def test_a_row_or_block_outside_is_an_error(outside: int, mode: Any) -> None:
    order = Order(10, mode=mode, block=1)
    with pytest.raises(ValueError, match="row"):
        order.positions([0, outside])
    with pytest.raises(ValueError, match="block"):
        order.window_of([0, outside])


def test_no_rows_have_no_positions_and_no_blocks() -> None:
    order = Order(0)
    assert order.positions([]).tolist() == []
    assert order.blocks == 0


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
