"""Maps rows to the byte ranges of local files that the engine has to read for a batch."""

from __future__ import annotations

from fastio.engine.fields.cold import ColdRows, ReadAheadPlan, windows_of
from fastio.engine.fields.columns import Columns, columns
from fastio.engine.fields.images import image_source as image_source
from fastio.engine.fields.reads import (
    AS_STORED,
    LOOK_INTO_FILE,
    WHOLE_FILE,
    ImageReads,
    ImageSource,
)
from fastio.engine.fields.spans import SpanRead, Spans

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
