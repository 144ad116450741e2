"""Probes of the machine, or of the container that this process is in."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import torch

from fastio import _native
from fastio.diagnose.facts import MachineFacts
from fastio.runtime.cores import allowed_cores, available_cores, cpu_quota
from fastio.runtime.memory import available_memory

_SHM = Path("/dev/shm")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")


def machine_facts(device: torch.device | None = None) -> MachineFacts:
    """Returns the facts of the machine, or of the container of this process.

    Args:
        device: that batches go to; None: host memory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gpu = device is not None and device.type == "cuda"
    return MachineFacts(
        cpu=cpu_name(),
        cores=available_cores(),
        simd=_native.simd_active().name,
        memory_bytes=total_memory(),
        torch=str(torch.__version__),
        device=torch.cuda.get_device_name(device) if gpu else "cpu",
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        allowed_cores=allowed_cores(),
        available_bytes=available_memory(),
        quota=cpu_quota(),
        throttled_share=throttled_share(),
        swapped_bytes=swapped_bytes(),
        shm_bytes=file_system_bytes(_SHM),
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        most_open_files=None if hard == resource.RLIM_INFINITY else hard,
        huge_pages=huge_pages(),
        container=any(os.path.exists(path) for path in _CONTAINER_FILES),
    )


def cpu_name() -> str:
    """Returns the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def total_memory() -> int:
    """Returns the bytes of memory of this machine, or of the container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def peak_memory() -> int:
    """Returns the largest resident set size of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def throttled_share(cgroup: Path = _CGROUP) -> float | None:
    """Returns the share of the CPU quota's periods that were throttled; None without a quota."""
    for name in ("cpu.stat", "cpu/cpu.stat"):  # control groups of version 2 and 1
        with suppress(OSError, ValueError):
            lines = (cgroup / name).read_text().splitlines()
            values = dict(line.split(" ", 1) for line in lines if " " in line)
            periods = int(values.get("nr_periods", 0))
            return int(values.get("nr_throttled", 0)) / periods if periods else None
    return None


def swapped_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """Returns the bytes that are in swap space now."""
    with suppress(OSError, ValueError, KeyError):
        lines = (line.partition(":") for line in meminfo.read_text().splitlines())
        kib = {name: int(value.split()[0]) for name, _, value in lines if value.strip()}
        return (kib["SwapTotal"] - kib["SwapFree"]) * 1024
    return None


def file_system_bytes(path: Path) -> int | None:
    """Returns the size of the file system at a path, in bytes."""
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_frsize * found.f_blocks
    return None


def huge_pages(path: Path = _HUGE_PAGES) -> str | None:
    """Returns the system's setting of transparent huge pages: "always", "madvise" or "never"."""
    with suppress(OSError, IndexError):
        return path.read_text().split("[")[1].split("]")[0]
    return None
