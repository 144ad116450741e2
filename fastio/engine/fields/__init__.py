"""Fields in the engine: which bytes of which files its threads read for the rows of a batch."""

from __future__ import annotations

from fastio.engine.fields.cold import ColdRows, ReadAheadPlan, windows_of
from fastio.engine.fields.columns import Columns
from fastio.engine.fields.images import ImageSource
from fastio.engine.fields.spans import SpanRead, Spans

__all__ = [
    "ColdRows",
    "Columns",
    "ImageSource",
    "ReadAheadPlan",
    "SpanRead",
    "Spans",
    "windows_of",
]
