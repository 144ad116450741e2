"""What other processes take of the cores, from readings that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastio.diagnose.probes.machine import CoreTimes, cores_of_others

TICK = os.sysconf("SC_CLK_TCK")


def test_others_take_what_is_busy_beyond_ones_own_time() -> None:
    before = CoreTimes(at_s=100.0, busy_s=50.0, own_s=7.0)
    after = CoreTimes(at_s=110.0, busy_s=68.0, own_s=10.0)
    assert cores_of_others(before, after) == pytest.approx((18.0 - 3.0) / 10.0)


def test_threads_that_wait_for_a_disk_take_no_core() -> None:
    """As a load of hundreds, of which nobody computes."""
    assert cores_of_others(CoreTimes(0.0, 5.0, 5.0), CoreTimes(10.0, 5.0, 5.0)) == 0.0


def test_what_is_rounded_makes_no_negative_number_of_cores() -> None:
    assert cores_of_others(CoreTimes(0.0, 0.0, 0.0), CoreTimes(1.0, 0.99, 1.0)) == 0.0


def test_what_is_not_known_is_none() -> None:
    reading = CoreTimes(0.0, 0.0, 0.0)
    assert cores_of_others(None, reading) is None
    assert cores_of_others(reading, None) is None
    assert cores_of_others(reading, reading) is None


def test_a_reading_counts_busy_time_of_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    stat = tmp_path / "stat"
    one = [1, 2, 4, 1000, 2000, 8, 16, 32, 1, 2]  # idle and iowait are not busy, guests are in user
    lines = [f"cpu{core} {' '.join(str(value * (core + 1)) for value in one)}" for core in range(3)]
    stat.write_text("\n".join([f"cpu  {' '.join(map(str, one))}", *lines, "ctxt 12345", ""]))
    found = CoreTimes.now(stat)
    assert found is not None
    assert found.busy_s == pytest.approx((63 * 1 + 63 * 3) / TICK)
    assert found.own_s > 0


@pytest.mark.parametrize("text", [None, "", "ctxt 5\n", "cpu0 what is this\n"])
def test_a_system_that_does_not_tell_gives_no_reading(text: str | None, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    assert CoreTimes.now(stat) is None
