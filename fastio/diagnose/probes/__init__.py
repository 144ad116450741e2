"""Probes: each measures one thing and returns facts. Bounded in time and bytes; they only read.

What a probe cannot find out is None, and a note says why.

- `examine`: all probes in their order
- `machine`, `gpu`: machine, settings, what other processes use; the GPU
- `data`, `files`, `storage`, `remote`: what the dataset is, and how fast its bytes come
- `samples`: how fast images and rows are decoded, as they are and packed as a trial
- `rates`: attempts that may fail or hang; samples a second of loaders that are compared
"""

from __future__ import annotations

from fastio.diagnose.probes.examine import examine

__all__ = ["examine"]
