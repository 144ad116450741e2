"""Codebooks of the block codec, and the default one, which comes with fastio."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from fastio import _native


@lru_cache(2)
def open_codebook(data: bytes) -> _native.Codebook:
    """Returns a codebook for the native encoder and decoder; ValueError if it is not valid."""
    return _native.Codebook(np.frombuffer(data, np.uint8))


@cache
def default_codebook_data() -> bytes:
    """Returns the 16,640 bytes of the default codebook."""
    return Path(__file__).with_name("codebook.bin").read_bytes()


@cache
def default_codebook() -> _native.Codebook:
    """Returns the default codebook for the native encoder and decoder."""
    return open_codebook(default_codebook_data())
