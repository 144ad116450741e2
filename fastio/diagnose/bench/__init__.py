"""Where an epoch's time goes: loader and model measured alone and together, cold and warm.

    options -> subject (the data's loaders) -> bench (the runs) -> diagnose.Measured

- `options`, `presets`: what can be asked for; MLPerf Storage's accelerators
- `subject`, `loader_batches`, `synthetic`: the data; photos of a stated size where there is none
- `runs`: which are made, and for how long
- `loop`, `intervals`: the loop of all runs, and what is read off it
- `compute`, `device`: what computes, or is emulated
- `models`, `tasks`: models by name, and how they learn
- `storage`, `machine`: cold files; where it runs
- `baseline`, `trial`, `training`: DataLoader beside it; packing as a trial; accuracy side by side
- `bench`: all of it
- `ladder`, `recipes`, `rung`: one trick more each time, trained by processes of their own
"""

from __future__ import annotations

from fastio.diagnose.bench.bench import bench
from fastio.diagnose.bench.ladder import ladder
from fastio.diagnose.bench.options import Options
from fastio.diagnose.bench.presets import PRESETS, Preset
from fastio.errors import BenchError

__all__ = ["PRESETS", "BenchError", "Options", "Preset", "bench", "ladder"]
