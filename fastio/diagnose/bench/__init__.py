"""Measures where the time of an epoch goes: loader and model alone and together, cold and warm.

    options -> subject (the data's loaders) -> bench (the runs) -> diagnose.Measured

- `subject`, `synthetic`: the data and its loaders; photos of a stated size where there is no data
- `runs`: which runs are made, and for how long; packing as a trial
- `compute`: the model by name, or the accelerator that is emulated
- `baseline`, `training`: DataLoader for comparison; accuracy of both loaders
- `bench`: all of it
- `ladder`, `rung`: one optimisation more each time, trained by processes of their own
"""

from __future__ import annotations

from fastio.diagnose.bench.bench import bench
from fastio.diagnose.bench.ladder import ladder
from fastio.diagnose.options import PRESETS, Options, Preset
from fastio.errors import BenchError

__all__ = ["PRESETS", "BenchError", "Options", "Preset", "bench", "ladder"]
