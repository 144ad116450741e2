"""Processes that are killed while they work on one cache folder; `kill_storm` does the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill_storm import storm


@pytest.mark.parametrize("kills", [2, pytest.param(24, marks=pytest.mark.long)])
def test_killed_processes_leave_nothing_that_others_notice(kills: int, tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=kills, seed=1, say=lambda text: None)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert len(outcome.first_batch_s) == kills
