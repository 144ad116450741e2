"""How many cores a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio.runtime import cores

_SLURM = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_CPUS_PER_TASK")


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
    assert cores.machine_cores() == expected


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "3"}, 3),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_NODEID": "0"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "1"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "2"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "eight", "SLURM_NODEID": "0"}, 1),
    ],
)
def test_launchers_say_how_many_ranks_a_machine_has(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], ranks: int
) -> None:
    launched(monkeypatch, environment)
    assert cores.local_ranks() == ranks


@pytest.mark.parametrize(
    ("ranks", "quota", "share"),
    [(1, None, 8), (2, None, 4), (3, None, 2), (16, None, 1), (2, 6.0, 3), (4, 2.5, 1)],
)
def test_ranks_divide_the_cores_and_the_quota(
    monkeypatch: pytest.MonkeyPatch, ranks: int, quota: float | None, share: int
) -> None:
    launched(monkeypatch, {"LOCAL_WORLD_SIZE": str(ranks)}, cores_of_parent=8)
    monkeypatch.setattr(cores, "allowed_cores", lambda: 8)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.available_cores() == share
    assert cores.machine_cores() == (8 if quota is None else min(8, -(-quota // 1)))


def test_cores_to_which_a_launcher_bound_a_rank_are_not_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: 2)
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    launched(monkeypatch, {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, cores_of_parent=8)
    assert cores.available_cores() == 2
    launched(monkeypatch, {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, cores_of_parent=2)
    assert cores.available_cores() == 1
    slurm = {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0", "SLURM_CPUS_PER_TASK": "2"}
    launched(monkeypatch, slurm, cores_of_parent=2)
    assert cores.available_cores() == 2


def test_a_loader_of_a_rank_starts_its_share_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, {"LOCAL_WORLD_SIZE": "3"}, cores_of_parent=6)
    monkeypatch.setattr(cores, "allowed_cores", lambda: 6)
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    with fastio.Loader({"x": np.arange(64)}, 8, distributed=False) as loader:
        next(iter(loader))
        assert loader.stats().threads == 2


def launched(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], cores_of_parent: int = 1
) -> None:
    """As a rank that a launcher has started with these variables."""
    for name in (*cores._LOCAL_SIZES, *_SLURM):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    allowed = set(range(cores_of_parent))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed, raising=False)
