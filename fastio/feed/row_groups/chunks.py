"""The chunks of a run over a table: rows that are gathered, and then dealt in their final order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.engine.batch import AnyArray, Lease
from fastio.feed.row_groups.blocks import Block
from fastio.feed.row_groups.cut import GroupSpan, GroupWindow
from fastio.feed.row_groups.ragged import RaggedRuns


@dataclass
class Dealt:
    """The rows of a chunk in their final order.

    Attributes:
        rows: int64 (n,), the row numbers.
        fields: The fixed-width fields, (n, *shape) each.
        ragged: The other fields of each batch.
        leases: The leases of the memory of `fields`.
    """

    rows: npt.NDArray[np.int64]
    fields: dict[str, AnyArray]
    ragged: list[dict[str, Any]]
    leases: list[Lease]

    def release(self) -> None:
        """Returns the memory to its pools."""
        for lease in self.leases:
            lease.release()


class DealtPart(NamedTuple):
    """A batch: rows [begin, end) of a chunk; `at` is the first one's position in the stream."""

    chunk: Dealt
    begin: int
    end: int
    at: int


@dataclass
class Chunk:
    """A range of positions of the stream that are dealt together, while rows are added.

    Attributes:
        number: The number of the chunk. It begins at position number * chunk_rows of the run.
        rows: The number of rows.
        block: The memory of the rows, which are in any order within their buckets.
        ragged: The variable-width rows of each window that has rows in the chunk.
    """

    number: int
    rows: int
    block: Block
    ragged: list[RaggedRuns] = field(default_factory=list)


@dataclass
class OpenWindow:
    """A window whose row groups are being decoded."""

    window: GroupWindow
    chunks: list[Chunk]
    ragged: RaggedRuns
    waiting: deque[GroupSpan]
    left: int  # segments that are not decoded yet

    @property
    def end(self) -> int:
        """The number of the chunk after the last one."""
        return self.chunks[-1].number + 1
