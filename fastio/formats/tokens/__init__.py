"""Tokens of a packed dataset seen as windows of one length."""

from __future__ import annotations

from fastio.formats.tokens.dataset import TokenDataset
from fastio.formats.tokens.windows import TokenWindows

__all__ = ["TokenDataset", "TokenWindows"]
