"""What killed packs, cache warms and trainings leave behind; `kill_jobs` does the work."""

from __future__ import annotations

import pytest

from tests.kill_jobs import JOBS, in_memory, storm


# Kills of a training and of a cache are in test_train_loop.py and test_cache_kill.py too.
@pytest.mark.parametrize(
    ("name", "kills"),
    [("pack", 1), *(pytest.param(name, 12, marks=pytest.mark.long) for name in JOBS)],
)
def test_killed_work_is_gone_on_with_and_nothing_is_left(name: str, kills: int) -> None:
    with in_memory() as folder:
        outcome = storm(JOBS[name], folder, kills=kills, seed=1, say=lambda text: None)
    assert not outcome.wrong, str(outcome)
    assert outcome.kills.total() >= kills
