"""Whether memory that is kept would help, and how to have it kept.

Training on CPUs allocates and frees large tensors all the time. glibc's malloc gives their pages
back to the kernel, which hands out zeroed ones for the next. It keeps them if told to by two
variables; jemalloc, preloaded, only if told so too: with its own settings, and with those of
PyTorch's performance tuning guide, it gave back more than glibc, and steps took longer: of DLRM in
batches of 16,384, and of ResNet-18, on two shared cores, 1.4 and 1.2 times glibc's processor time,
1.2 and 1.2 with the guide's. Told to keep it, jemalloc took 0.86 and 0.83, glibc 0.96 and 0.90. On
GPUs PyTorch has an allocator of its own, and fastio's batches lie in slots that are used again.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

# Up to what size freed memory is kept, and how much of it: beyond what a step allocates.
_GLIBC = "MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184"
_JEMALLOC = "MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"

# A page fault costs 0.5 to 5 microseconds. Both were exceeded where keeping pages made a step
# faster, and neither where it did not.
_SYSTEM_SHARE = 0.05
_FAULTS_PER_S = 10_000
_LEAST_S = 10  # of processors, as memory is faulted in at the beginning with any allocator


@dataclass(frozen=True)
class Usage:
    """The memory and time that this process has used so far.

    Attributes:
        user_s, system_s: time of processors, of its own and in the kernel.
        faults: page faults that needed no disk.
    """

    user_s: float
    system_s: float
    faults: int

    @classmethod
    def now(cls) -> Usage:
        """Returns the usage until now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime, used.ru_stime, used.ru_minflt)


def allocator_advice(
    before: Usage, after: Usage, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Returns one line of advice on the memory allocator, for training on CPUs.

    Args:
        before, after: training was between them.
        environment: of the process.

    Returns:
        None where page faults take little of the time, where that is too short to tell, or where
        the allocator was told to keep memory already, or is another one.
    """
    system_s, faults = after.system_s - before.system_s, after.faults - before.faults
    used_s = after.user_s - before.user_s + system_s
    if used_s < _LEAST_S:
        return None
    if system_s <= _SYSTEM_SHARE * used_s or faults <= _FAULTS_PER_S * used_s:
        return None
    settings = _settings(environment.get("LD_PRELOAD", ""))
    if settings is None or settings.partition("=")[0] in environment:
        return None
    return (
        f"page faults and the like take {system_s / used_s:.0%} of the processors' time: with "
        f"`{settings}` in the environment memory is kept, which may be faster"
    )


def _settings(preloaded: str) -> str | None:
    """Returns the variables that make an allocator keep memory; None if it is unknown."""
    if "jemalloc" in preloaded:
        return _JEMALLOC
    return None if "malloc" in preloaded else _GLIBC
