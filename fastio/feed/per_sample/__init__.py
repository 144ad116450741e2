"""Python functions for single samples, in parallel: the stage between decoding and batching.

The engine hands over each decoded batch (`stage.py`). Its rows are divided into chunks, which
threads or processes take (`threads.py`, `processes.py`); they call the functions (`calls.py`) and
write the results to the memory of the batch (`fastio.tensors.results`). Processes share the memory
of images and results with this process (`memory.py`): only numbers go through their sockets.
"""

from __future__ import annotations

from fastio.feed.per_sample.stage import PerSampleStage, ProcessSettings

__all__ = ["PerSampleStage", "ProcessSettings"]
