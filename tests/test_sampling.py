"""Which rows make up which batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.order.state import Cursor
from tests.support import flat

BEGIN = Cursor(0, 0, 0)


def rows(sampling: Sampling, count: int, cursor: Cursor = BEGIN, ranks: Ranks | None = None) -> Any:
    return [batch.rows.tolist() for batch in sampling.plan(count, cursor, ranks or Ranks())]


@pytest.mark.parametrize(
    ("sampling", "mode", "kind"),
    [
        (Sampling(), "sequential", "sequential"),
        (Sampling(shuffle=True), "shuffle", "shuffle"),
        (Sampling(shuffle=True, order="window"), "window", "window"),
        (Sampling(order="shuffle"), "shuffle", "shuffle"),
        (Sampling(shuffle=False, order="sequential"), "sequential", "sequential"),
        (Sampling(sampler=[1]), "sequential", "sampler"),
    ],
)
def test_shuffle_and_order_choose_the_mode(sampling: Sampling, mode: str, kind: str) -> None:
    assert (sampling.mode, sampling.how.kind) == (mode, kind)


def test_the_sizes_of_windows_of_a_state_are_taken_over() -> None:
    shuffling = Shuffling("window", block=8, window=4)
    saved = Sampling(4, shuffle=True, shuffling=shuffling).described(Ranks())
    other = Sampling(4, shuffle=True, shuffling=Shuffling("window", block=16, window=2))
    assert other.adopting(saved).described(Ranks()) == saved


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"kind": "window"},
        {"kind": "window", "block": "8", "window": 4},
        {"kind": "window", "block": 8, "window": -4},
        {"kind": "shuffle", "block": 8, "window": 4},
    ],
)
def test_other_values_of_a_state_are_not_taken_over(order: dict[str, Any]) -> None:
    sampling = Sampling(4, shuffle=True, shuffling=Shuffling("window", block=16, window=2))
    assert sampling.adopting(order) == sampling


def test_the_order_seed_goes_before_the_seed() -> None:
    sampling = Sampling(4, shuffle=True)
    assert rows(sampling, 20, Cursor(1, 0, 5, 9)) == rows(sampling, 20, Cursor(1, 0, 9))
    assert rows(sampling, 20, Cursor(1, 0, 5)) != rows(sampling, 20, Cursor(1, 0, 9))


@given(
    st.integers(0, 60),
    st.integers(1, 9),
    st.integers(0, 70),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_plan_from_any_position_has_the_rest_of_the_epoch(
    total: int, batch_size: int, position: int, world_size: int, shuffle: bool
) -> None:
    sampling = Sampling(batch_size, shuffle=shuffle)
    whole = flat(rows(sampling, total))
    cursor = Cursor(0, position, 0)
    plans = [list(sampling.plan(total, cursor, Ranks(r, world_size))) for r in range(world_size)]
    steps = list(zip(*plans, strict=True))
    assert flat(b.rows[: b.valid].tolist() for step in steps for b in step) == whole[position:]
    assert all(len({batch.next_position for batch in step}) == 1 for step in steps)


@given(st.lists(st.integers(0, 99)), st.integers(1, 9), st.integers(0, 40), st.booleans())
def test_keys_of_a_sampler_go_on_from_any_position(
    keys: list[int], batch_size: int, position: int, drop_last: bool
) -> None:
    sampling = Sampling(batch_size, sampler=keys, drop_last=drop_last)
    left = keys[position:]
    whole = [left[i : i + batch_size] for i in range(0, len(left), batch_size)]
    wanted = [batch for batch in whole if not drop_last or len(batch) == batch_size]
    assert list(sampling.keys(Cursor(0, position, 0))) == wanted


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5)), st.integers(0, 8))
def test_a_batch_sampler_goes_on_behind_the_batches_that_were_done(
    batches: list[list[int]], done: int
) -> None:
    sampling = Sampling(batch_sampler=batches)
    position = len(flat(batches[:done]))
    assert list(sampling.keys(Cursor(0, position, 0))) == batches[done:]


def test_single_samples_have_numbers_as_keys() -> None:
    assert rows(Sampling(None, sampler=[3, 1]), 5) == [[3], [1]]
    with pytest.raises(TypeError):
        rows(Sampling(None, sampler=[[3, 1]]), 5)


def test_a_sampler_is_drawn_from_lazily() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return count()

    assert list(islice(Sampling(2, sampler=Endless()).keys(Cursor(0, 0, 0)), 2)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        (Sampling(4), 3),
        (Sampling(4, drop_last=True), 2),
        (Sampling(None), 10),
        (Sampling(4, sampler=range(9)), 3),
        (Sampling(4, sampler=range(9), drop_last=True), 2),
        (Sampling(None, sampler=range(9)), 9),
        (Sampling(batch_sampler=[[1], [2, 3]]), 2),
    ],
)
def test_steps_are_the_batches_of_an_epoch(sampling: Sampling, steps: int) -> None:
    assert sampling.steps(10, Ranks()) == steps


def test_steps_of_an_endless_sampler_are_not_known() -> None:
    with pytest.raises(TypeError):
        Sampling(sampler=(number for number in count())).steps(10, Ranks())


def test_a_step_begins_at_its_global_batch() -> None:
    assert Sampling(4).first_step(24, Ranks(0, 3)) == 2
    assert Sampling(4, sampler=[0]).first_step(24, Ranks(0, 3)) == 6
    assert Sampling(None).first_step(7, Ranks()) == 7


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        Ranks(rank, world_size)


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        (Sampling(), "rows are not shuffled: as the arguments of the loader say"),
        (
            Sampling(shuffle=True),
            "rows are shuffled over the whole dataset: any row can be read at any time",
        ),
        (
            Sampling(shuffle=True, shuffling=Shuffling("settle", "cached", "block", 40, 32)),
            "rows are shuffled within windows of 32 blocks of 40 rows in the first epoch, and over "
            "the whole dataset from the second epoch on: the data is in a store and fetched by "
            "blocks, and the cache has room for all of it",
        ),
        (
            Sampling(order="shuffle", shuffling=Shuffling("window", "store", "block", 40, 32)),
            "rows are shuffled over the whole dataset: as the arguments of the loader say",
        ),
        (
            Sampling(sampler=[1]),
            "a sampler or the dataset decides the order of the rows: as the arguments of the "
            "loader say",
        ),
    ],
)
def test_a_sampling_says_how_rows_are_shuffled_and_why(sampling: Sampling, sentence: str) -> None:
    assert sampling.how.sentence() == sentence
