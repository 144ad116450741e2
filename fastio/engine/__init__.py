"""The Python interface of the native engine: plans in, decoded batches out, in order.

Each batch takes one native call, which queues the rows of an image field. Threads read and decode
the rows without holding the GIL, and `next()` waits for the oldest batch only, while later batches
are being decoded. Images that the native code cannot decode (PNG, CMYK JPEG, ...) are decoded by
Pillow in a pool of Python threads.

An error is stored in its batch. It is raised, or the sample skipped or replaced, when that batch is
delivered.
"""

from __future__ import annotations

from fastio.engine.engine import Engine
from fastio.engine.settings import EngineSettings, OnError
from fastio.engine.stream import BatchStream

__all__ = [
    "BatchStream",
    "Engine",
    "EngineSettings",
    "OnError",
]
