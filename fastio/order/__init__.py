"""Which rows come when, as arithmetic: orders, plans, sampling arguments and states.

- `order`, `orders`, `partitions`: position -> row in an epoch, in all epochs, in parts for nodes
- `plan`: the batches of a rank; `buckets`: batches of rows of similar lengths; `followed`: those of
  a user's sampler
- `sampling`: what the arguments of a loader ask for; `shuffling`: how rows are shuffled, as a
  value. It is chosen for a dataset in `fastio.stage.shuffling`
- `state`: the position of a loader, as the dictionary that is saved
"""

from __future__ import annotations
