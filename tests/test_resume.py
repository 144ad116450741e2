"""The state of a loader as a dictionary, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastio import StateMismatch
from fastio.order.state import Cursor, from_state, to_state

CURSOR = Cursor(3, 1 << 40, -7, 5, "its state")
SHUFFLE = {"kind": "shuffle"}
STATES = {"sampler": [1, 2]}


def saved(**changes: Any) -> dict[str, Any]:
    state = to_state(CURSOR, fingerprint="abc", order=SHUFFLE, states=STATES)
    return {**state, **changes}


def test_a_state_brings_the_cursor_back_through_json() -> None:
    state = json.loads(json.dumps(saved()))
    cursor = from_state(state, fingerprint="abc", order=SHUFFLE)
    assert cursor == CURSOR
    assert cursor.states is not None
    assert cursor.states.saved == STATES


def test_a_seed_that_is_not_drawn_yet_stays_so() -> None:
    state = json.loads(json.dumps(saved(seed=None, generator=None)))
    assert from_state(state, fingerprint="abc", order=SHUFFLE).seed is None


def test_another_dataset_is_refused_naming_both_fingerprints() -> None:
    with pytest.raises(StateMismatch, match=r"'abc'.*'xyz'"):
        from_state(saved(), fingerprint="xyz", order=SHUFFLE)


def test_another_version_is_refused_naming_both() -> None:
    with pytest.raises(StateMismatch, match=r"99.*8"):
        from_state(saved(version=99), fingerprint="abc", order=SHUFFLE)


def test_another_order_is_refused_naming_both() -> None:
    with pytest.raises(StateMismatch, match=r"'shuffle'.*'sequential'"):
        from_state(saved(), fingerprint="abc", order={"kind": "sequential"})


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 1},
        saved(epoch="one"),
        saved(position=-1),
        saved(seed="x"),
        saved(order_seed=""),
        saved(stateful=3),
        saved(stateful=[{}, {}]),
    ],
    ids=["empty", "not ours", "epoch", "position", "seed", "order seed", "states", "two states"],
)
def test_damaged_states_are_refused(state: dict[str, Any]) -> None:
    with pytest.raises(StateMismatch):
        from_state(state, fingerprint="abc", order=SHUFFLE)


def test_a_state_with_a_missing_key_is_refused_naming_it() -> None:
    state = saved()
    del state["position"]
    with pytest.raises(StateMismatch, match=r"position"):
        from_state(state, fingerprint="abc", order=SHUFFLE)
