"""How many cores a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastio.runtime import cores


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("250000 100000", 2.5), ("nonsense", None)]
)
def test_the_quota_of_control_groups_version_2(
    tmp_path: Path, text: str, quota: float | None
) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert cores.cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("used", "quota"), [(-1, None), (50_000, 0.5)])
def test_the_quota_of_control_groups_version_1(
    tmp_path: Path, used: int, quota: float | None
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{used}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.cpu_quota(tmp_path) == quota


def test_without_control_groups_no_quota_is_known(tmp_path: Path) -> None:
    assert cores.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (2.5, 3), (0.5, 1), (64.0, 8)])
def test_a_quota_leaves_fewer_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: 8)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.available_cores() == expected
