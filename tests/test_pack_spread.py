"""A few of many, evenly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastio.pack.items import spread


def test_all_of_few_are_taken() -> None:
    assert [sorted(spread(total, 8)) for total in range(9)] == [list(range(n)) for n in range(9)]


def test_the_order_is_coarse_first() -> None:
    assert spread(800, 8) == [0, 400, 200, 600, 100, 500, 300, 700]


@given(st.integers(1, 10**7), st.integers(1, 600))
def test_no_gap_is_much_larger_than_the_others(total: int, count: int) -> None:
    found = sorted(spread(total, count))
    assert len(set(found)) == min(total, count)
    assert found[0] >= 0
    assert found[-1] < total
    gaps = np.diff([*found, total])
    assert gaps.max() - gaps.min() <= 1


def test_its_beginnings_are_even_too() -> None:
    order = spread(512_000, 512)
    for count in (2, 4, 32, 256):
        gaps = np.diff([*sorted(order[:count]), 512_000])
        assert set(gaps.tolist()) == {512_000 // count}
