"""Whether another memory allocator would help, and how to get it.

Training on CPUs allocates and frees large tensors all the time. glibc's malloc gives their pages
back to the kernel and faults them in anew; jemalloc and tcmalloc keep them. PyTorch's performance
tuning guide advises either for CPUs. On GPUs PyTorch has an allocator of its own, and fastio's
batches lie in slots that are used again.
"""

from __future__ import annotations

import ctypes.util
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NAMES = ("jemalloc", "tcmalloc")

# A page fault costs 0.5 to 5 microseconds. Both were exceeded where keeping pages made a step
# faster, and neither where it did not.
_SYSTEM_SHARE = 0.05
_FAULTS_PER_S = 10_000
_LEAST_S = 10  # of processors, as memory is faulted in at the beginning with any allocator


@dataclass(frozen=True)
class Usage:
    """What this process has used up so far.

    Attributes:
        user_s, system_s: time of processors, of its own and in the kernel.
        faults: page faults that needed no disk.
    """

    user_s: float
    system_s: float
    faults: int

    @classmethod
    def now(cls) -> Usage:
        """Until now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime, used.ru_stime, used.ru_minflt)


def allocator_advice(
    before: Usage,
    after: Usage,
    environment: Mapping[str, str] = os.environ,
    find: Callable[[str], str | None] = ctypes.util.find_library,
) -> str | None:
    """One line of advice for training on CPUs.

    Args:
        before, after: training was between them.
        environment: of the process.
        find: gives a library's file name, or None where it is not installed.

    Returns:
        None where page faults take little of the time, where that is too short to tell, or where
        such an allocator is preloaded.
    """
    system_s, faults = after.system_s - before.system_s, after.faults - before.faults
    used_s = after.user_s - before.user_s + system_s
    if used_s < _LEAST_S:
        return None
    if system_s <= _SYSTEM_SHARE * used_s or faults <= _FAULTS_PER_S * used_s:
        return None
    preloaded = environment.get("LD_PRELOAD", "")
    if any(name in preloaded for name in NAMES):
        return None
    lost = f"page faults and the like take {system_s / used_s:.0%} of the processors' time"
    for name in (*NAMES, "tcmalloc_minimal"):
        library = find(name)
        if library is not None:
            return f"{lost}: LD_PRELOAD={library} fastio train ... may avoid them"
    return f"{lost}: apt install libjemalloc2; LD_PRELOAD=libjemalloc.so.2 may avoid them"
