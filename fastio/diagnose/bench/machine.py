"""The machine that a bench runs on."""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import torch

from fastio import _native
from fastio.cores import available_cores
from fastio.diagnose.measured import Machine, Memory


def machine(device: torch.device | None = None) -> Machine:
    """This machine, and what computes on it.

    Args:
        device: that batches go to; None: host memory.
    """
    name = "cpu"
    if device is not None and device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return Machine(
        cpu=cpu_name(),
        cores=available_cores(),
        simd=_native.simd_active().name,
        memory_bytes=total_memory(),
        torch=torch.__version__,
        device=name,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def cpu_name() -> str:
    """The processor's name as the system has it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def total_memory() -> int:
    """Bytes of memory that this machine, or the container, has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def memory(available: int) -> Memory:
    """The peak of this process so far.

    Args:
        available: bytes that could be had when the bench began.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Memory(peak if sys.platform == "darwin" else peak * 1024, available)


def cpu_with_children() -> float:
    """Processor seconds of this process and of those that multiprocessing started here and run."""
    spent = time.process_time()
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold spaces; user and system time are fields 14 and 15.
            values = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            spent += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return spent
