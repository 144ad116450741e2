"""Fetches blocks of remote datasets before their rows are needed.

- `shuffling`: the one place that chooses how the rows of any dataset are shuffled, local ones too:
  what is fetched as a whole decides which order is cheap
- `blocks`: a dataset as blocks of rows; `directory`, `earlier`: what is copied from blocks of
  earlier versions
- `lookahead`: which blocks the next batches need; `stager`: the threads that fetch them
- `cached`: finds blocks in the cache, claims and stores them; `forecast`: when each is needed next
- `warming`, `pace`: a whole dataset is fetched to a cache, with as many requests as pay
"""

from __future__ import annotations

from fastio.stage.blocks import Blocks
from fastio.stage.forecast import Forecast
from fastio.stage.lookahead import (
    Lookahead,
    StagingPlan,
    ahead_bytes,
    most_ahead_bytes,
    staged,
)
from fastio.stage.shuffling import Cut, cut
from fastio.stage.stager import Stager
from fastio.stage.warming import WarmReport, warm

__all__ = [
    "Blocks",
    "Cut",
    "Forecast",
    "Lookahead",
    "Stager",
    "StagingPlan",
    "WarmReport",
    "ahead_bytes",
    "cut",
    "most_ahead_bytes",
    "staged",
    "warm",
]
