"""How the rows of an epoch are shuffled, and why, as one value.

`fastio.stage.shuffling` chooses it by the storage of a dataset, and `Sampling.how` applies the
arguments of the loader. `Shuffling.sentence` is what users read; no code reads that text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ShufflingKind = Literal[
    "sequential", "shuffle", "window", "settle", "sampler", "generator", "row groups", "mix"
]
Reason = Literal[
    "argument", "any row", "store", "cached", "shards", "memory", "row groups", "parts", "state"
]
Granularity = Literal["block", "shard", "row group"]
Fetcher = Literal["node", "rank"]

_WHAT: dict[ShufflingKind, str] = {
    "sequential": "rows are not shuffled",
    "shuffle": "rows are shuffled over the whole dataset",
    "window": "rows are shuffled within windows of {parts}",
    "settle": "rows are shuffled within windows of {parts} in the first epoch, and over the whole "
    "dataset from the second epoch on",
    "sampler": "a sampler or the dataset decides the order of the rows",
    "generator": "rows are shuffled over the whole dataset by a torch.Generator",
    "row groups": "row groups are shuffled, and rows within windows of {mib:,.0f} MiB of them",
    "mix": "the sources alternate by their weights",
}
_WHY: dict[Reason, str] = {
    "argument": "as the arguments of the loader say",
    "any row": "any row can be read at any time",
    "store": "the data is in a store and fetched by blocks",
    "cached": "the data is in a store and fetched by blocks, and the cache has room for all of it",
    "shards": "the data is in a store and fetched by whole shards",
    "memory": "the table is larger than half of the memory",
    "row groups": "a row group is decoded as a whole",
    "parts": "a part of the dataset is shuffled by windows",
    "state": "the loaded state was saved with this order",
}


@dataclass(frozen=True)
class Shuffling:
    """How the rows of an epoch are shuffled, and why.

    Attributes:
        kind: "sequential", "shuffle" (any row anywhere), "window", "settle" (as "window" in the
            first epoch and as "shuffle" afterwards), "sampler", "generator" (a permutation drawn by
            a torch.Generator), "row groups" (table files read in place) or "mix".
        reason: why; the key of a sentence.
        granularity: what windows consist of.
        block: number of rows in a block; None if windows do not consist of blocks, or by default.
        window: number of blocks, shards or row groups in a window; None if there are no windows, or
            by default.
        bounds: first row of each shard or row group, and the number of rows; None for blocks.
        window_bytes: memory of a window of row groups in bytes; 0 for other kinds.
        fetched_by: who fetches the data from its store, once for all of its own batches: "node" if
            the ranks of a node share a cache, else "rank". None if the data is on this machine.
        partitions: number of partitions of the dataset of which each batch has equal parts, see
            `order.partitions`. None if the ranks decide it, see `Sampling.partitions_of`.
    """

    kind: ShufflingKind = "shuffle"
    reason: Reason = "any row"
    granularity: Granularity = "block"
    block: int | None = None
    window: int | None = None
    bounds: tuple[int, ...] | None = None
    window_bytes: int = 0
    fetched_by: Fetcher | None = None
    partitions: int | None = None

    @property
    def by_windows(self) -> bool:
        """Whether rows are shuffled within windows of blocks, shards or row groups."""
        return self.kind in ("window", "settle")

    def sentence(self) -> str:
        """Returns what users are told: how the rows are shuffled, and why."""
        divided = ""
        if not self._whole:
            divided = (
                f"; each global batch has equally many rows of each of {self.partitions} "
                "partitions, and a row is in the same partition in every epoch"
            )
        return f"{self.what()}: {_WHY[self.reason]}{divided}"

    def what(self) -> str:
        """Returns how the rows are shuffled, as a clause; `repr(loader)` has it."""
        of_rows = f" of {self.block:,} rows" if self.block and self.bounds is None else ""
        number = "" if self.window is None else f"{self.window:,} "
        told = _WHAT[self.kind].format(
            parts=f"{number}{self.granularity}s{of_rows}", mib=self.window_bytes / 2**20
        )
        return told if self._whole else told.replace("the whole dataset", "each partition")

    @property
    def _whole(self) -> bool:
        """Whether the dataset has one partition."""
        return (self.partitions or 1) == 1
