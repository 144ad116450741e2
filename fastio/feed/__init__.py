"""Batches for a loader: from the native engine, row groups, mixes and worker processes.

- `request`, `arguments`: the arguments of a loader, and their checks
- `choose`: which feed a dataset gets, and why; `current`: the feed of a loader, made again when
  settings change
- `base`: what every feed does; `native`, `joined` and `mixed`, `row_groups/`, `workers`: the feeds
- `fields`: transforms by field; `per_sample/`: Python functions for each sample
- `delivery`: values as tensors and samples; `iterator`: one pass over an epoch
- `epochs`: position and state, from which a run continues; `seeds`; `samplers`; `tuning` of threads
"""

from __future__ import annotations
