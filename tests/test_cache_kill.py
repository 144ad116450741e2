"""Processes that are killed while they work on one cache folder; `kill_storm` does the work."""

from __future__ import annotations

from pathlib import Path

from tests.kill_storm import storm


def test_killed_processes_leave_nothing_that_others_notice(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=12, seed=1, say=lambda text: None)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert len(outcome.first_batch_s) == 12
