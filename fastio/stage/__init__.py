"""Fetches blocks of remote datasets before their rows are needed."""

from __future__ import annotations

from fastio.stage.blocks import Blocks
from fastio.stage.forecast import Forecast
from fastio.stage.lookahead import Lookahead, StagingPlan, ahead_bytes, staged
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
    "staged",
    "warm",
]
