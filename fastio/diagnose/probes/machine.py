"""Probes of the machine or container, of torch's settings, of other processes, and of the GPU.

The use of the cores by other processes is measured over some time: the kernel counts how long each
core was busy (/proc/stat), and the time of this process and its children is subtracted. The load
average would also count threads that wait for a disk, and those of a container's whole host.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from fastio import _native
from fastio.diagnose.facts import GpuFacts, MachineFacts, SettingsFacts
from fastio.runtime.cores import allowed_cores, cpu_quota, local_ranks, machine_cores
from fastio.runtime.memory import available_memory, total_memory

_SHM = Path("/dev/shm")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")


def machine_facts(device: torch.device | None = None) -> MachineFacts:
    """Returns the facts of the machine, or of the container of this process.

    Args:
        device: device that batches are delivered to; None for host memory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gpu = device is not None and device.type == "cuda"
    return MachineFacts(
        cpu=cpu_name(),
        cores=machine_cores(),
        simd=_native.simd_active(),
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
        return shutil.disk_usage(path).total
    return None


def huge_pages(path: Path = _HUGE_PAGES) -> str | None:
    """Returns the system's setting of transparent huge pages: "always", "madvise" or "never"."""
    with suppress(OSError, IndexError):
        return path.read_text().split("[")[1].split("]")[0]
    return None


# --- Settings of torch and the environment --------------------------------------------------------

_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_MAPS = Path("/proc/self/maps")
_LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


def settings_facts() -> SettingsFacts:
    """Returns the settings of torch and of this process's environment."""
    return SettingsFacts(
        torch_cuda=torch.version.cuda,
        torch_threads=torch.get_num_threads(),
        omp_threads=omp_threads(),
        allocator=allocator(),
        other_allocator=other_allocator(),
        local_ranks=local_ranks(),
        nvidia=os.path.exists("/dev/nvidia0") or shutil.which("nvidia-smi") is not None,
    )


def omp_threads() -> int | None:
    """Returns OMP_NUM_THREADS, if it is set to a number."""
    with suppress(ValueError):
        return int(os.environ.get("OMP_NUM_THREADS", ""))
    return None


def allocator(maps: Path = _MAPS) -> str:
    """Returns the name of the memory allocator that this process has loaded."""
    with suppress(OSError):
        text = maps.read_text(errors="replace")  # names of mapped files may be any bytes
        for name in _ALLOCATORS:
            if f"lib{name}" in text:
                return name
    return "malloc"


def other_allocator(folders: tuple[str, ...] = _LIBRARIES) -> str | None:
    """Returns the path of an installed allocator that could be preloaded."""
    for name in _ALLOCATORS[:2]:
        for folder in folders:
            found = sorted(glob.glob(f"{folder}/lib{name}*.so*"))
            if found:
                return found[0]
    return None


# --- Cores that other processes use ---------------------------------------------------------------

_STAT = Path("/proc/stat")
# Of the fields user, nice, system, idle, iowait, irq, softirq, steal. Guests' time is in user's.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class CoreTimes:
    """A reading of processor times. The difference of two readings is the use in between.

    Attributes:
        at_s: when it was taken.
        busy_s: how long the cores of this process have been busy, all added up.
        own_s: processor time of this process and of those that it started.
    """

    at_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls, stat: Path = _STAT) -> CoreTimes | None:
        """Returns a reading, or None if the system does not provide one."""
        with suppress(OSError, ValueError):
            # Its own time is read last: what is used meanwhile never counts as others'.
            at_s, busy_s = time.monotonic(), _busy_s(stat.read_text())
            return cls(at_s, busy_s, own_cpu_s())
        return None


def cores_of_others(before: CoreTimes | None, after: CoreTimes | None) -> float | None:
    """Returns the mean number of cores that other processes used between two readings, or None."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others_s) / (after.at_s - before.at_s)


def own_cpu_s() -> float:
    """Returns the processor seconds of this process and its children, running workers included."""
    # RUSAGE_CHILDREN counts only children that have ended. The times of running ones are read from
    # /proc.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold spaces; user and system time are fields 14 and 15.
            values = (
                Path(f"/proc/{child.pid}/stat")
                .read_text(errors="replace")
                .rpartition(")")[2]
                .split()
            )
            spent += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _busy_s(stat: str) -> float:
    """Returns the busy seconds of the cores that this process may run on.

    Raises:
        ValueError: it is not told of any of them.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    found = []
    for line in stat.splitlines():
        name, *fields = line.split()
        one_core = name.startswith("cpu") and name[3:].isdigit()
        if one_core and (allowed is None or int(name[3:]) in allowed):
            found.append(sum(int(fields[number]) for number in _BUSY if number < len(fields)))
    if not found:
        raise ValueError("/proc/stat lists no core that this process may use")
    return sum(found) / os.sysconf("SC_CLK_TCK")


# --- The first CUDA device ------------------------------------------------------------------------

_COPY_BYTES = 64 << 20
_EDGE = 4096  # rows and columns of the matrices
_IMAGES = (32, 128, 56, 56)  # shape (N, C, H, W) of the convolution's input
_NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader,nounits")


def gpu_facts() -> GpuFacts | None:
    """Returns the facts of the first CUDA device, or None if torch finds none."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", 0)
    about = torch.cuda.get_device_properties(device)
    pinned = copy_rate(device, pinned=True)
    return GpuFacts(
        name=about.name,
        count=torch.cuda.device_count(),
        capability=(about.major, about.minor),
        memory_bytes=about.total_memory,
        tf32=torch.backends.cuda.matmul.allow_tf32,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        pinned_bytes_s=pinned,
        # Queried right after a copy, because an idle link changes to a slower mode.
        link=_link("current", about),
        best_link=_link("max", about),
        pageable_bytes_s=copy_rate(device, pinned=False),
        flops=matmul_rates(device, (about.major, about.minor)),
        channels_last_gain=channels_last_gain(device),
    )


def copy_rate(device: torch.device, *, pinned: bool) -> float:
    """Returns the bytes per second of copies to a device."""
    host = torch.zeros(_COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
    there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    seconds = _seconds(device, lambda: there.copy_(host, non_blocking=pinned), 8)
    return _COPY_BYTES / seconds


def matmul_rates(device: torch.device, capability: tuple[int, int]) -> dict[str, float]:
    """Returns the floating-point operations per second of a matrix product, by type."""
    rates = {}
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, dtype, tf32 in (
            ("float32", torch.float32, False),
            ("tf32", torch.float32, True),
            ("bfloat16", torch.bfloat16, False),
        ):
            # TF32 and bfloat16 need a GPU of the Ampere generation or a newer one.
            if name != "float32" and capability < (8, 0):
                continue
            # This setting also affects the user's matrix products, so it is restored below.
            torch.backends.cuda.matmul.allow_tf32 = tf32
            one = torch.ones((_EDGE, _EDGE), dtype=dtype, device=device)
            out = torch.empty_like(one)
            seconds = _seconds(device, _product(one, out), 5)
            rates[name] = 2 * _EDGE**3 / seconds
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return rates


def channels_last_gain(device: torch.device) -> float:
    """Returns the speed-up of a half-precision convolution by channels_last memory."""
    layer = torch.nn.Conv2d(_IMAGES[1], _IMAGES[1], 3, padding=1).requires_grad_(False)
    layer = layer.to(device, torch.float16)
    images = torch.zeros(_IMAGES, dtype=torch.float16, device=device)
    contiguous = _seconds(device, lambda: layer(images), 10)
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = images.to(memory_format=torch.channels_last)
    return contiguous / _seconds(device, lambda: layer(images), 10)


def _product(one: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.mm(one, one, out=out)


def _seconds(device: torch.device, work: Callable[[], object], times: int) -> float:
    """Returns the seconds that an operation takes on the device after a warm-up."""
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    stream = torch.cuda.current_stream(device)
    begin.record(stream)
    for _ in range(times):
        work()
    end.record(stream)
    end.synchronize()
    seconds: float = begin.elapsed_time(end) / 1e3
    return max(seconds / times, 1e-9)


def _link(which: str, about: Any) -> tuple[int, int] | None:
    """Returns PCIe generation and lanes, "current" or "max"; None if nvidia-smi does not report
    them.

    Args:
        which: "current" or "max".
        about: the device's properties. Its UUID identifies the device, because nvidia-smi also
            counts devices that CUDA_VISIBLE_DEVICES hides.
    """
    query = f"--query-gpu=pcie.link.gen.{which},pcie.link.width.{which}"
    device = f"--id=GPU-{about.uuid}"
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(
            [*_NVIDIA_SMI, device, query], capture_output=True, text=True, timeout=10, check=True
        )
        generation, width = done.stdout.split(",")
        return int(generation), int(width)
    return None
