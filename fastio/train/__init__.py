"""Training loops on fastio's public names: read them, run them, copy them.

`fit` in loop.py is the loop; kinds.py describes what is trained. Names that need
torch are imported when they are used: the command line reads the options without it.
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
