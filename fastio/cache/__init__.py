"""The cache of remote data on a local disk, and files in memory where there is none."""

from __future__ import annotations

from fastio.cache.claims import Outcome
from fastio.cache.direct import Aligned, Buffers, aligned_size
from fastio.cache.editions import block_of, edition
from fastio.cache.eviction import Consumer, NextUse
from fastio.cache.files import Written
from fastio.cache.folder import CacheFolder, Source, State
from fastio.cache.memory import MemoryFile, memory_file
from fastio.cache.report import (
    CacheCheck,
    CachedDataset,
    CacheStatus,
    DamagedPiece,
    Removed,
    check_is_cache,
    is_cache,
)
from fastio.cache.spec import Cache, default_cache, parse_budget

__all__ = [
    "Aligned",
    "Buffers",
    "Cache",
    "CacheCheck",
    "CacheFolder",
    "CacheStatus",
    "CachedDataset",
    "Consumer",
    "DamagedPiece",
    "MemoryFile",
    "NextUse",
    "Outcome",
    "Removed",
    "Source",
    "State",
    "Written",
    "aligned_size",
    "block_of",
    "check_is_cache",
    "default_cache",
    "edition",
    "is_cache",
    "memory_file",
    "parse_budget",
]
