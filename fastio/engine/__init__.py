"""The Python face of the native engine: plans in, decoded batches out, in order.

One native call a batch: it queues the rows of an image field, threads read and decode them
without the interpreter's lock, and `next()` waits for the oldest batch only. Batches ahead of it
are being decoded meanwhile. What the native side cannot decode (PNG, CMYK JPEG, ...) goes through
Pillow in a pool of Python threads.

An error rides in its batch: it is raised, or skipped, or replaced, when that batch's turn comes.
"""

from __future__ import annotations

from fastio.engine.engine import Engine, OnError, StagingPlan, numpy_memory
from fastio.engine.stream import BatchStream

__all__ = [
    "BatchStream",
    "Engine",
    "OnError",
    "StagingPlan",
    "numpy_memory",
]
