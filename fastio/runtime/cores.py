"""How many threads are worth starting, and the ranks and machines of a job, as launchers say."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
# The ranks on this machine, as launchers say it: torchrun, Accelerate and Ray Train; Open MPI;
# MPICH and Intel MPI; MVAPICH; DeepSpeed.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "LOCAL_SIZE",
)
_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"  # "8(x2),4": 8 on the first two nodes, 4 on the third


def available_cores() -> int:
    """Returns this process's share of the cores: the ranks of a job on one machine divide them.

    Cores that a launcher has bound to this rank are not divided again. A container's CPU quota is
    shared by all ranks.
    """
    ranks = local_ranks()
    if ranks == 1:
        return machine_cores()
    cores, quota = allowed_cores(), cpu_quota()
    # Launchers such as Slurm may have given each rank cores of its own.
    share = float(cores if _bound(cores, ranks) else cores // ranks)
    return max(1, math.floor(share if quota is None else min(share, math.ceil(quota) / ranks)))


def machine_cores() -> int:
    """Returns the number of cores that this process may run on, by affinity and container quota."""
    quota = cpu_quota()
    cores = allowed_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def local_ranks() -> int:
    """Returns the number of ranks of this job on this machine, as its launcher says; else 1."""
    for name in _LOCAL_SIZES:
        with suppress(KeyError, ValueError):
            return max(1, int(os.environ[name]))
    with suppress(KeyError, ValueError, IndexError):
        tasks: list[int] = []
        for part in os.environ[_SLURM_TASKS].split(","):
            count, _, times = part.removesuffix(")").partition("(x")
            tasks += [int(count)] * int(times or 1)
        return max(1, tasks[int(os.environ["SLURM_NODEID"])])
    return 1


def node_count(world_size: int) -> int:
    """Returns the number of nodes among which the ranks of a run are divided evenly.

    It is the number that torchrun gives to all of its processes, or else Slurm, if its step has one
    task per rank. All ranks get the same number, which divides the world size; 1 if it is unknown.

    Args:
        world_size: number of ranks.
    """
    nodes = _number("GROUP_WORLD_SIZE")
    if nodes is None and _number("SLURM_STEP_NUM_TASKS") == world_size:
        nodes = _number("SLURM_STEP_NUM_NODES")
    return math.gcd(nodes or 1, world_size)


def _bound(cores: int, ranks: int) -> bool:
    """Returns whether the cores that this process may run on are this rank's alone.

    Slurm says how many each task gets. Other launchers that bind ranks to cores are not bound
    themselves: the process that started this one may run on the cores of all ranks.
    """
    with suppress(KeyError, ValueError):
        if cores <= int(os.environ["SLURM_CPUS_PER_TASK"]):
            return True
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(os.getppid())) >= cores * ranks
    return False


def _number(name: str) -> int | None:
    """Returns the positive number in an environment variable, or None."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


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
