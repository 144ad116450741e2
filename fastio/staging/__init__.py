"""From rows that will be needed to local files that have them: blocks of remote datasets."""

from __future__ import annotations

from fastio.staging.blocks import Blocks
from fastio.staging.choice import Cut, cut
from fastio.staging.forecast import Forecast
from fastio.staging.lookahead import Lookahead
from fastio.staging.setup import ahead_bytes, staged
from fastio.staging.stager import Stager
from fastio.staging.warming import WarmReport, warm

__all__ = [
    "Blocks",
    "Cut",
    "Forecast",
    "Lookahead",
    "Stager",
    "WarmReport",
    "ahead_bytes",
    "cut",
    "staged",
    "warm",
]
