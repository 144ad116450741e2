"""The Python interface of the native engine: plans in, decoded batches out, in order.

Each batch takes one native call, which queues the rows of an image field. Threads read and decode
the rows without holding the GIL, and `next()` waits for the oldest batch only, while later batches
are being decoded. Images that the native code cannot decode (PNG, CMYK JPEG, ...) are decoded by
Pillow in a pool of Python threads.

An error is stored in its batch. It is raised, or the sample skipped or replaced, when that batch is
delivered.

- `engine`, `threads`, `settings`: threads and readers, and what becomes of bad samples
- `stream`: the batches of a run; `pending`: a batch in work; `pump`: to a stage that follows
- `batch`, `ragged`: batches, the memory that they lease, and where rows of any size lie in it
- `fields/`: one reader for each kind of field; `jpeg_indexes`: indexes of JPEGs in a cache
"""

from __future__ import annotations

# isort: off
from fastio.engine.engine import Engine as Engine
from fastio.engine.settings import EngineSettings as EngineSettings, OnError as OnError
from fastio.engine.stream import BatchStream as BatchStream
