"""The cache of remote data on a local disk, and files in memory where there is none.

- `spec`: `Cache`, the settings of users, and the folder that each process opens
- `folder`: each thing that is done with a folder of pieces, as a transaction; `claim` evicts when
  there is too little room
- `eviction`: which pieces are deleted then; `claims`: which process fetches a piece
- `index`, `files`, `held`, `direct`: the database of pieces; their files, and safe access to them
- `members`: the processes that use a folder, and whether they are alive
- `editions`: the piece of a block in a given version of the dataset
- `kept`: indexes and listings, which are pieces of their own
- `report`: status, prune, clear and verify; `memory`: files in memory
"""

from __future__ import annotations

from fastio.cache.claims import Outcome
from fastio.cache.direct import Aligned, Buffers, aligned_size
from fastio.cache.editions import block_of, edition
from fastio.cache.eviction import Consumer, NextUse
from fastio.cache.files import FileStamp, Written
from fastio.cache.folder import CacheFolder, Source, State
from fastio.cache.kept import keep, kept_source
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
    "FileStamp",
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
    "keep",
    "kept_source",
    "memory_file",
    "parse_budget",
]
