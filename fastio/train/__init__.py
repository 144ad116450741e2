"""Training loops on fastio's public names: read them, run them, copy them.

`fit` in loop.py is the loop; image.py, text.py and tabular.py say what is trained.
"""

from __future__ import annotations

from fastio.train.loop import Result, fit
from fastio.train.options import Options
from fastio.train.task import Outcome, Task

__all__ = ["Options", "Outcome", "Result", "Task", "fit"]
