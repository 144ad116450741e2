"""Every row is right, whatever arrives; `fault_storm` does the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault_storm import KINDS, storm

QUICK = {("packed", True), ("tars", False)}  # with checksums and without, in memory and in a cache


@pytest.mark.parametrize(
    ("kind", "cache"),
    [
        pytest.param(kind, cache, marks=() if (kind, cache) in QUICK else pytest.mark.long)
        for kind in KINDS
        for cache in (False, True)
    ],
)
def test_spoilt_answers_cost_requests_and_nothing_else(
    kind: str, cache: bool, tmp_path: Path
) -> None:
    outcome = storm(kind, tmp_path, epochs=2, rate=0.1, seed=5, cache=cache, epochs_a_loader=1)
    assert not outcome.wrong, str(outcome)
    assert outcome.open >= 5, str(outcome)
    # Each broken answer is a request made again, and more where this machine is slow. After an
    # answer of another range or of the whole object, the same attempt asks for the version: where
    # that answer is broken too, two faults are one retry.
    doubted = outcome.struck["whole"] + outcome.struck["range"]
    assert outcome.retries >= outcome.open - doubted, str(outcome)
    # A head, or a block, of several spoilt answers is fetched again once. In tars, single bits are
    # wrong in headers alone, which are read when the dataset is opened, and passed over then.
    assert outcome.refetched <= outcome.hidden, str(outcome)
    assert outcome.refetched or kind == "tars", str(outcome)
