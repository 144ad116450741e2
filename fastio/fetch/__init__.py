"""Maps rows to the byte ranges of local files that the engine has to read for a batch."""

from __future__ import annotations

from fastio.fetch.cold import ColdRows, ReadAheadPlan, windows_of
from fastio.fetch.columns import Columns, columns
from fastio.fetch.images import image_source as image_source
from fastio.fetch.reads import AS_STORED, LOOK_INTO_FILE, WHOLE_FILE, ImageReads, ImageSource
from fastio.fetch.spans import SpanRead, Spans

__all__ = [
    "AS_STORED",
    "LOOK_INTO_FILE",
    "WHOLE_FILE",
    "ColdRows",
    "Columns",
    "ImageReads",
    "ImageSource",
    "ReadAheadPlan",
    "SpanRead",
    "Spans",
    "columns",
    "image_source",
    "windows_of",
]
