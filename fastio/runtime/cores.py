"""How many threads are worth starting."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Returns the number of cores that this process may use, by affinity and container quota."""
    quota = cpu_quota()
    cores = allowed_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def allowed_cores() -> int:
    """Returns the number of cores that this process may run on, by affinity."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(cgroup: Path = _CGROUP) -> float | None:
    """Returns the CPU quota of a container in cores; None if no limit is known.

    Args:
        cgroup: where the control groups are seen, version 2 or 1.
    """
    with suppress(OSError, ValueError, IndexError):
        quota, period = (cgroup / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        used = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
        return None if used <= 0 else used / period_us
    return None
