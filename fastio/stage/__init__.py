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

# isort: off
from fastio.stage.blocks import Blocks as Blocks
from fastio.stage.forecast import Forecast as Forecast
from fastio.stage.lookahead import (
    Lookahead as Lookahead,
    StagingPlan as StagingPlan,
    ahead_bytes as ahead_bytes,
    most_ahead_bytes as most_ahead_bytes,
    staged as staged,
)
from fastio.stage.shuffling import Cut as Cut, cut as cut
from fastio.stage.stager import Stager as Stager
from fastio.stage.warming import WarmReport as WarmReport, warm as warm
