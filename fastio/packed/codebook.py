"""The default codebook of the block codec, which comes with fastio."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from fastio import _native


@cache
def default_codebook_data() -> bytes:
    """Returns the 16,640 bytes of the default codebook."""
    return Path(__file__).with_name("codebook.bin").read_bytes()


@cache
def default_codebook() -> _native.Codebook:
    """Returns the default codebook for the native encoder and decoder."""
    return _native.Codebook(np.frombuffer(default_codebook_data(), np.uint8))
