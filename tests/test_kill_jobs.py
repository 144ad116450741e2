"""What killed packs, cache warms and trainings leave behind; `kill_jobs` does the work."""

from __future__ import annotations

import pytest

from tests.kill_jobs import JOBS, in_memory, storm


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", JOBS)
def test_killed_work_is_gone_on_with_and_nothing_is_left(name: str, kills: int) -> None:
    with in_memory() as folder:
        outcome = storm(JOBS[name], folder, kills=kills, seed=1, say=lambda text: None)
    assert not outcome.wrong, str(outcome)
    assert outcome.kills.total() >= kills
