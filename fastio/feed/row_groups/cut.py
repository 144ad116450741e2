"""Assigns rows of row groups to ranks, and to windows that are shuffled together.

The row groups are permuted as wholes. Their sequence is cut in equal shares for the ranks, so that
a row group is decoded by one rank, or by two at a border. A rank's share is cut in windows of
consecutive row groups that fit in memory, and the rows of each window are permuted. The order is
thus a function of (seed, epoch, number of ranks, bytes of a window).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastio import _native
from fastio.order.order import WORD, Mode, Order
from fastio.order.sampling import Ranks
from fastio.sources.table.direct import RowGroup


@dataclass(frozen=True)
class GroupSpan:
    """Rows [begin, end) of a row group.

    Attributes:
        group: The row group.
        begin, end: The range of rows in it.
        offset: The number of rows before them in their window, before it is permuted.
    """

    group: RowGroup
    begin: int
    end: int
    offset: int = 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.begin

    @property
    def varying_bytes(self) -> int:
        """The approximate size of its variable-width values."""
        # The footer has the size for the whole row group only.
        return self.group.varying_bytes * self.rows // self.group.rows


@dataclass(frozen=True)
class GroupWindow:
    """Rows that are shuffled together.

    Attributes:
        first: The position of the first row in the rank's stream.
        rows: The number of rows.
        segments: The rows before they are permuted.
        order: The permutation: position p of the window has row order.at(p) of its segments.
    """

    first: int
    rows: int
    segments: Sequence[GroupSpan]
    order: Order

    @property
    def varying_bytes(self) -> int:
        """The approximate size of its variable-width values."""
        return sum(segment.varying_bytes for segment in self.segments)

    def needed_from(self, position: int) -> list[GroupSpan]:
        """Returns the segments that are needed to deal the rows from a position of the stream on.

        If the window is shuffled, these are all of its segments.
        """
        before = position - self.first if self.order.mode == "sequential" else 0
        return [one for one in self.segments if one.offset + one.rows > before]


@dataclass(frozen=True)
class Share:
    """The part of an epoch's rows that one rank gets.

    Attributes:
        first: The position of the first row in the order of all row groups.
        rows: The number of rows of the stream, the same on every rank.
        valid: The number of rows that count. A row that does not count is padding at the end, and
            belongs to the next rank.
    """

    first: int
    rows: int
    valid: int

    @staticmethod
    def of(total: int, ranks: Ranks, batch_size: int, drop_last: bool) -> Share:
        """Returns the share of a rank in `total` rows."""
        least, more = divmod(total, ranks.world_size)
        first = ranks.rank * least + min(ranks.rank, more)
        if drop_last:
            rows = least // batch_size * batch_size
            return Share(first, rows, rows)
        return Share(first, least + (more > 0), least + (ranks.rank < more))


def windows(
    groups: Sequence[RowGroup],
    share: Share,
    *,
    seed: int,
    epoch: int,
    shuffle: bool,
    row_bytes: int,
    window_bytes: int,
) -> Iterator[GroupWindow]:
    """Yields the windows of a rank's stream in order.

    Args:
        groups: All row groups, of at least one row each.
        share: The share of the rank.
        seed, epoch: The key of the order.
        shuffle: Whether to shuffle. If False, rows are in the order of the files.
        row_bytes: The fixed memory of a row in a window.
        window_bytes: The largest memory of a window, unless it has only one row group.
    """
    mode: Mode = "shuffle" if shuffle else "sequential"
    # The order of a window uses the number of the window as its epoch, so the real epoch is mixed
    # into the key.
    key = _native.mix_key(seed & WORD, epoch)
    places = Order(len(groups), seed, epoch, mode).at(np.arange(len(groups)))
    ordered = [groups[place] for place in places.tolist()]
    first = number = taken = 0
    held: list[GroupSpan] = []
    for segment in _segments(ordered, share.first, share.valid):
        nbytes = segment.rows * row_bytes + segment.varying_bytes
        if held and taken + nbytes > window_bytes:
            rows = held[-1].offset + held[-1].rows
            yield GroupWindow(first, rows, held, Order(rows, key, number, mode))
            first, number, taken, held = first + rows, number + 1, 0, []
        offset = held[-1].offset + held[-1].rows if held else 0
        held.append(GroupSpan(segment.group, segment.begin, segment.end, offset))
        taken += nbytes
    if held:
        rows = held[-1].offset + held[-1].rows
        yield GroupWindow(first, rows, held, Order(rows, key, number, mode))
    # Padding comes last, and is not shuffled among the rows that count.
    padding = list(_segments(ordered, share.first + share.valid, share.rows - share.valid))
    if padding:
        rows = share.rows - share.valid
        yield GroupWindow(share.valid, rows, padding, Order(rows, mode="sequential"))


def _segments(groups: Sequence[RowGroup], first: int, rows: int) -> Iterator[GroupSpan]:
    """Yields `rows` consecutive rows of row groups; the first group follows the last."""
    ends = np.cumsum([group.rows for group in groups])
    total = int(ends[-1]) if len(groups) else 0
    at, left = first, rows
    while left:
        at %= total
        place = int(np.searchsorted(ends, at, side="right"))
        group = groups[place]
        begin = group.rows - (int(ends[place]) - at)
        end = min(group.rows, begin + left)
        yield GroupSpan(group, begin, end)
        at, left = at + end - begin, left - (end - begin)
