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

# isort: off
from fastio.cache.claims import Outcome as Outcome
from fastio.cache.direct import Aligned as Aligned, Buffers as Buffers, aligned_size as aligned_size
from fastio.cache.editions import block_of as block_of, edition as edition
from fastio.cache.eviction import Consumer as Consumer, NextUse as NextUse
from fastio.cache.files import FileStamp as FileStamp, Written as Written
from fastio.cache.folder import CacheFolder as CacheFolder, Source as Source, State as State
from fastio.cache.kept import keep as keep, kept_source as kept_source
from fastio.cache.memory import MemoryFile as MemoryFile, memory_file as memory_file
from fastio.cache.report import (
    CacheCheck as CacheCheck,
    CachedDataset as CachedDataset,
    CacheStatus as CacheStatus,
    DamagedPiece as DamagedPiece,
    Removed as Removed,
    check_is_cache as check_is_cache,
    is_cache as is_cache,
)
from fastio.cache.spec import (
    Cache as Cache,
    default_cache as default_cache,
)
