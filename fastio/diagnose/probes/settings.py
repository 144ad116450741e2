"""Probes of torch's settings and of the environment."""

from __future__ import annotations

import glob
import os
import shutil
from contextlib import suppress
from pathlib import Path

import torch

from fastio.diagnose.facts import SettingsFacts
from fastio.runtime.memory import local_ranks

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
        text = maps.read_text()
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
