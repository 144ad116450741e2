"""Whether another memory allocator would help, and how to get it.

Training on CPUs allocates and frees large tensors all the time. glibc's malloc gives their pages
back to the kernel and faults them in anew; jemalloc and tcmalloc keep them. PyTorch's performance
tuning guide advises either for CPUs. On GPUs PyTorch has an allocator of its own, and fastio's
batches lie in slots that are used again.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Callable, Mapping

NAMES = ("jemalloc", "tcmalloc")


def allocator_advice(
    environment: Mapping[str, str] = os.environ,
    find: Callable[[str], str | None] = ctypes.util.find_library,
) -> str | None:
    """One line of advice for training on CPUs; None where such an allocator is preloaded.

    Args:
        environment: of the process.
        find: gives a library's file name, or None where it is not installed.
    """
    preloaded = environment.get("LD_PRELOAD", "")
    if any(name in preloaded for name in NAMES):
        return None
    for name in (*NAMES, "tcmalloc_minimal"):
        library = find(name)
        if library is not None:
            return f"{name} may speed this up: LD_PRELOAD={library} fastio train ..."
    return (
        "jemalloc may speed this up: apt install libjemalloc2; "
        "LD_PRELOAD=libjemalloc.so.2 fastio train ..."
    )
