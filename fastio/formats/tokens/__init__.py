"""Tokens of a packed dataset seen as windows of one length, or as padded documents."""

from __future__ import annotations

from fastio.formats.tokens.dataset import TokenDataset
from fastio.formats.tokens.padded import PaddedDataset, TokenPad
from fastio.formats.tokens.windows import TokenWindows

__all__ = ["PaddedDataset", "TokenDataset", "TokenPad", "TokenWindows"]
