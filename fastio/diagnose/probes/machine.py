"""Probes of the machine, or of the container that this process is in."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from fastio import _native
from fastio.cores import allowed_cores, available_cores, cpu_quota
from fastio.diagnose.bench.machine import cpu_name, total_memory
from fastio.diagnose.facts import MachineFacts
from fastio.memory import available_memory

_SHM = Path("/dev/shm")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")


def machine_facts() -> MachineFacts:
    """What this process may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineFacts(
        cpu=cpu_name(),
        cores=available_cores(),
        allowed_cores=allowed_cores(),
        simd=_native.simd_active().name,
        memory_bytes=total_memory(),
        available_bytes=available_memory(),
        quota=cpu_quota(),
        throttled_share=throttled_share(),
        load=load(),
        swapped_bytes=swapped_bytes(),
        shm_bytes=file_system_bytes(_SHM),
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        most_open_files=None if hard == resource.RLIM_INFINITY else hard,
        huge_pages=huge_pages(),
        container=any(os.path.exists(path) for path in _CONTAINER_FILES),
    )


def throttled_share(cgroup: Path = _CGROUP) -> float | None:
    """Of a quota's periods those in which it was used up; None without a quota."""
    for name in ("cpu.stat", "cpu/cpu.stat"):  # control groups of version 2 and 1
        with suppress(OSError, ValueError):
            lines = (cgroup / name).read_text().splitlines()
            values = dict(line.split(" ", 1) for line in lines if " " in line)
            periods = int(values.get("nr_periods", 0))
            return int(values.get("nr_throttled", 0)) / periods if periods else None
    return None


def load() -> float | None:
    """Processes that wanted a core in the last minute, on average."""
    with suppress(OSError):
        return os.getloadavg()[0]
    return None


def swapped_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """What is in swap space now."""
    with suppress(OSError, ValueError, KeyError):
        lines = (line.partition(":") for line in meminfo.read_text().splitlines())
        kib = {name: int(value.split()[0]) for name, _, value in lines if value.strip()}
        return (kib["SwapTotal"] - kib["SwapFree"]) * 1024
    return None


def file_system_bytes(path: Path) -> int | None:
    """The size of the file system at a path."""
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_frsize * found.f_blocks
    return None


def huge_pages(path: Path = _HUGE_PAGES) -> str | None:
    """When the system gives huge pages: the word that is chosen of "always madvise never"."""
    with suppress(OSError, IndexError):
        return path.read_text().split("[")[1].split("]")[0]
    return None
