"""How many threads are worth starting."""

from __future__ import annotations

import os


def available_cores() -> int:
    """CPU cores that this process may use, by its affinity."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
