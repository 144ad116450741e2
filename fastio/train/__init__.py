"""Training loops on fastio's public names: read them, run them, copy them.

- `loop`: `fit`, the training loop; `run`: the state of a run; `learner`: model and optimizer
- `task`, `kinds`, `fields`, `objectives`: what a task is; the tasks for images, text and tables,
  the fields that they read, and their losses and metrics
- `options`, `loaders`, `parallel`: options of a run, its loaders, its processes and devices
- `checkpoint`, `monitor`, `progress`: checkpoints, curves, the progress bar
- `models/`: models by name

Names that need torch are imported when they are used, so that the command line can read the options
without importing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastio.train.options import Options

if TYPE_CHECKING:
    from fastio.train.loop import Result, fit
    from fastio.train.objectives import Outcome
    from fastio.train.task import Task

__all__ = ["Options", "Outcome", "Result", "Task", "fit"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    homes = {"Outcome": "objectives", "Result": "loop", "Task": "task", "fit": "loop"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{homes[name]}"), name)
