"""Tokens of a packed dataset seen as windows of one length, or as padded documents."""

from __future__ import annotations

from fastio.sources.corpus.dataset import TokenDataset
from fastio.sources.corpus.padded import PaddedDataset, TokenPad
from fastio.sources.corpus.windows import TokenWindows

__all__ = ["PaddedDataset", "TokenDataset", "TokenPad", "TokenWindows"]
