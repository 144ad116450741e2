"""Weights of a mix that change at given samples: shares, epochs, resuming, ranks, errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Loader, Mix, StateMismatch, mix
from fastio.views.mixing import CYCLE, MixOrder

SCHEDULE = {60: (0.0, 1.0, 1.0), 150: (1.0, 1.0, 0.0), 400: (0.0, 0.0, 1.0)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three sources, whose numbers begin at 0, 10,000 and 20,000."""
    folder = tmp_path_factory.mktemp("sources")
    paths = [folder / name for name in "abc"]
    for place, (path, count) in enumerate(zip(paths, (90, 50, 33), strict=True)):
        fastio.pack([{"x": 10_000 * place + i} for i in range(count)], path)
    return paths


def scheduled(sources: list[Path], stop: int = 250, **options: Any) -> Mix:
    weights = {sources[0]: 1.0, sources[1]: 0.0, sources[2]: 0.0}
    return mix(weights, stop=stop, schedule=SCHEDULE, **options)


def numbers(loader: Loader) -> list[int]:
    return [x for batch in loader for x in batch["x"][: loader.batch.valid].tolist()]


def order(rows: list[int], schedule: Any, stop: int) -> MixOrder:
    how: dict[str, Any] = {"seed": 1, "order_seed": 2, "shuffle": True}
    return MixOrder(rows, (0.5, 0.5), stop=stop, schedule=schedule, **how)


# --- The order ------------------------------------------------------------------------------------


def test_each_cycle_of_a_phase_has_its_shares() -> None:
    start = CYCLE + 1234
    mixed = order([10**6, 10**6], [(start, (0.2, 0.8))], 10**6)
    for begin, shares in ((0, (5000, 5000)), (start, (2000, 8000)), (start + CYCLE, (2000, 8000))):
        parts = mixed.parts(0, np.arange(begin, begin + CYCLE))
        assert tuple(len(part.rows) for part in parts) == shares


def test_a_source_misses_and_repeats_no_row_where_weights_change() -> None:
    schedule = [(700, (1.0, 0.0)), (1100, (0.0, 1.0)), (CYCLE + 2000, (0.3, 0.7))]
    mixed = order([613, 150], schedule, 6000)
    seen: dict[tuple[int, int], list[int]] = {}
    for epoch in range(4):
        for begin in range(0, 6000, 37):
            for part in mixed.parts(epoch, np.arange(begin, min(begin + 37, 6000))):
                seen.setdefault((part.source, part.epoch), []).extend(part.rows.tolist())
    for source, rows in ((0, 613), (1, 150)):
        passes = sorted(epoch for number, epoch in seen if number == source)
        assert passes == list(range(len(passes)))
        for epoch in passes[:-1]:
            assert sorted(seen[source, epoch]) == list(range(rows))


def test_without_a_schedule_the_order_is_that_of_one_weight_for_ever() -> None:
    positions = np.arange(500)
    plain, same = order([700, 90], [], 500), order([700, 90], [(10**9, (0.1, 0.9))], 500)
    for one, other in zip(plain.parts(1, positions), same.parts(1, positions), strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert one.places.tolist() == other.places.tolist()


# --- The loader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 250])
def test_weights_change_at_their_samples(sources: list[Path], batch_size: int) -> None:
    with Loader(scheduled(sources), batch_size, shuffle=True, seed=0) as loader:
        first, second = ([x // 10_000 for x in numbers(loader)] for _ in range(2))
    found = first + second
    assert len(found) == 500
    for (begin, end), allowed in {
        (0, 60): {0},
        (60, 150): {1, 2},
        (150, 400): {0, 1},
        (400, 500): {2},
    }.items():
        assert set(found[begin:end]) == allowed
    assert 90 < Counter(found[150:400])[0] < 160


def test_weights_by_source_are_those_in_order(sources: list[Path]) -> None:
    named = {60: dict(zip(reversed(sources), (0.75, 0.25, 0.0), strict=True))}
    listed = {60: (0.0, 1, 3)}
    rows = []
    for schedule in (named, listed):
        spec = mix([(path, 1.0) for path in sources], stop=100, schedule=schedule)
        with Loader(spec, 8, shuffle=True, seed=0) as loader:
            rows.append(numbers(loader))
    assert rows[0] == rows[1]


@pytest.mark.parametrize("done", [1, 4, 9, 15])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_run_goes_on_exactly_with_any_ranks(sources: list[Path], done: int, world: int) -> None:
    with Loader(scheduled(sources), 16, shuffle=True, seed=0) as loader:
        whole = [numbers(loader), numbers(loader)]
        loader.set_epoch(0)
        iterator = iter(loader)
        for _ in range(done):
            next(iterator)
        state = loader.state_dict()
    rest: list[list[int]] = [[], []]
    for rank in range(world):
        how: Any = {"shuffle": True, "seed": 0, "rank": rank, "world_size": world}
        with Loader(scheduled(sources), 16 // world, **how) as loader:
            loader.load_state_dict(state)
            rest[0] += numbers(loader)
            rest[1] += numbers(loader)
    assert sorted(rest[0]) == sorted(whole[0][16 * done :])
    assert sorted(rest[1]) == sorted(whole[1])


def test_a_state_of_another_schedule_is_refused(sources: list[Path]) -> None:
    with Loader(scheduled(sources), 16, seed=0) as loader:
        state = loader.state_dict()
    weights = dict.fromkeys(sources, 1.0)
    with (
        Loader(mix(weights, stop=250), 16, seed=0) as loader,
        pytest.raises(StateMismatch, match="another dataset"),
    ):
        loader.load_state_dict(state)


def test_a_source_that_is_left_out_for_long_is_not_planned_for(sources: list[Path]) -> None:
    spec = mix([(sources[0], 1.0), (sources[1], 0.0)], stop=10**12, schedule={10**11: (0, 1)})
    with Loader(spec, 16, shuffle=True, seed=0) as loader:
        batches = iter(loader)
        found = [x for _ in range(20) for x in next(batches)["x"].tolist()]
    assert max(found) < 90


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({100: (1, 2), 50: (2, 1)}, r"must be ascending, got \[100, 50\]"),
        ({0: (1, 2)}, "weights that apply from sample 0 on are those of the sources"),
        ({-5: (1, 2)}, "sample numbers of at least 1, got -5"),
        ({1.5: (1, 2)}, "sample numbers of at least 1, got 1.5"),
        ({9: (1, 2, 3)}, "3 weights from sample 9 on, but the mix has 2 sources"),
        ({9: (1, -1)}, "weights must be 0 or more"),
        ({9: (0, 0)}, "one above 0"),
        ({9: (1, float("nan"))}, "weights must be 0 or more"),
        ({9: (1, 1e-9)}, "at least 1/10000"),
        ({9: {"a": 1, "c": 1}}, "names an unknown source from sample 9 on: c"),
        ({9: {"a": 1}}, "names no weight for a source from sample 9 on: b"),
    ],
)
def test_an_impossible_schedule_is_named(schedule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mix({"a": 1, "b": 1}, stop=100, schedule=schedule)


@pytest.mark.parametrize("stop", ["all", "first"])
def test_an_epoch_with_a_schedule_needs_a_length(stop: Any) -> None:
    with pytest.raises(ValueError, match="number of samples of an epoch"):
        mix({"a": 1, "b": 1}, stop=stop, schedule={9: (1, 2)})


@pytest.mark.parametrize(
    ("sources", "schedule"),
    [
        (["https://user:secret@host/x"], None),
        ({"https://user:secret@host/x": 0, "b": 1}, {9: (0, 1)}),
        ({"https://user:secret@host/x": 1, "b": 1}, {9: {"b": 1}}),
    ],
)
def test_no_error_shows_the_password_of_a_source(sources: Any, schedule: Any) -> None:
    with pytest.raises(ValueError, match=r"https://.*host/x") as refused:
        mix(sources, stop=100, schedule=schedule)
    assert "secret" not in str(refused.value)


def test_a_source_that_never_comes_is_an_error() -> None:
    with pytest.raises(ValueError, match="the weight of b is never above 0"):
        mix({"a": 1, "b": 0}, stop=100, schedule={9: (1, 0)})
    with pytest.raises(ValueError, match="above 0"):
        mix({"a": 1, "b": 0})
