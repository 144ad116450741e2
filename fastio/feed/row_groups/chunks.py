"""The windows of a run over a table, and the chunks of the stream that their rows are dealt to."""

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
    """Rows at consecutive positions of the stream, while they are dealt.

    Attributes:
        number: The number of the chunk. It begins at position number * chunk_rows of the run.
        dealt: Its rows.
        ragged: The variable-width rows of each window that has rows in the chunk.
    """

    number: int
    dealt: Dealt
    ragged: list[RaggedRuns] = field(default_factory=list)


class OpenWindow:
    """A window whose rows are decoded and dealt.

    Args:
        window: The window.
        blocks: The memory of its records, in the order of its segments.
        ragged: The variable-width rows.
        start: The position in the stream of the first row that is dealt.

    Attributes:
        waiting: The segments that no thread has begun to decode.
        undealt: The number of rows that are not dealt yet.
    """

    def __init__(
        self, window: GroupWindow, blocks: list[Block], ragged: RaggedRuns, start: int
    ) -> None:
        self.window = window
        self.blocks = blocks
        self.ragged = ragged
        self.undealt = window.first + window.rows - max(window.first, start)
        self.waiting: deque[GroupSpan] = deque(window.needed_from(start))
        self._filled: dict[int, int] = {}  # ends of filled ranges of records, by begin
        self._ready = self.waiting[0].offset  # earlier records are filled, or are not needed

    def add(self, begin: int, end: int) -> None:
        """Marks records [begin, end) as filled. There must be at least one."""
        self._filled[begin] = end
        while self._ready in self._filled:
            self._ready = self._filled.pop(self._ready)

    def known(self, filled: int) -> int:
        """Returns how many rows can be dealt if only the first `filled` records are filled.

        If the window is shuffled, no rows can be dealt before all of its records are filled.
        """
        return filled if self.window.order.mode == "sequential" else 0

    def has(self, end: int) -> bool:
        """Returns whether the rows at the window's positions before `end` can be dealt.

        If the window is shuffled, all of its records must be filled.
        """
        window = self.window
        return self._ready >= (end if window.order.mode == "sequential" else window.rows)
