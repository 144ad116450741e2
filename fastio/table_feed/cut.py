"""Which rows of which row groups a rank gets in an epoch, and which of them are shuffled together.

The row groups are permuted as a whole. What follows one another in that order is cut in equal
shares for the ranks, so that a row group is decoded by one rank, or by two at a border. A rank's
share is cut in windows of consecutive row groups that memory can hold, and each window's rows are
permuted. So the order is a function of (seed, epoch, ranks, bytes of a window).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.formats.tables import RowGroup
from fastio.order import Mode, Order
from fastio.sampling import Ranks

_WORD = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Segment:
    """Rows [begin, end) of a row group.

    Attributes:
        group: the row group.
        begin, end: numbers in it.
        offset: of its rows among those of its window, before they are permuted.
    """

    group: RowGroup
    begin: int
    end: int
    offset: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.end - self.begin


@dataclass(frozen=True)
class Window:
    """Rows that are shuffled together.

    Attributes:
        first: position of its first row in the rank's stream.
        rows: how many.
        segments: where they are.
        order: of the rows; the one at position p of the window is order.at(p) of its segments.
    """

    first: int
    rows: int
    segments: Sequence[Segment]
    order: Order

    def positions(self, offset: int, count: int) -> npt.NDArray[np.int64]:
        """Where rows offset .. offset + count of the window stand in the rank's stream."""
        return self.order.positions_of_span(offset, count) + self.first


@dataclass(frozen=True)
class Share:
    """The part of an epoch's rows that one rank gets.

    Attributes:
        first: position of its first row in the order of all row groups.
        rows: of the stream, the same on every rank.
        valid: how many of them count; the one that does not comes last, and is the next rank's.
    """

    first: int
    rows: int
    valid: int

    @staticmethod
    def of(total: int, ranks: Ranks, batch_size: int, drop_last: bool) -> Share:
        """The share of a rank in `total` rows."""
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
) -> Iterator[Window]:
    """The windows of a rank's stream, in order.

    Args:
        groups: all row groups, of at least one row each.
        share: the rank's.
        seed, epoch: of the order.
        shuffle: False: as the files have the rows.
        row_bytes: what a row takes in a window, beside what varies.
        window_bytes: what a window may take, unless it is of one row group.
    """
    mode: Mode = "shuffle" if shuffle else "sequential"
    key = _native.mix_key(seed & _WORD, epoch)
    places = Order(len(groups), seed, epoch, mode).at(np.arange(len(groups)))
    ordered = [groups[place] for place in places.tolist()]
    first = number = taken = 0
    held: list[Segment] = []
    for segment in _segments(ordered, share.first, share.valid):
        group = segment.group
        nbytes = segment.rows * row_bytes + group.varying_bytes * segment.rows // group.rows
        if held and taken + nbytes > window_bytes:
            rows = held[-1].offset + held[-1].rows
            yield Window(first, rows, held, Order(rows, key, number, mode))
            first, number, taken, held = first + rows, number + 1, 0, []
        offset = held[-1].offset + held[-1].rows if held else 0
        held.append(Segment(group, segment.begin, segment.end, offset))
        taken += nbytes
    if held:
        rows = held[-1].offset + held[-1].rows
        yield Window(first, rows, held, Order(rows, key, number, mode))
    # What does not count comes last, and is not shuffled among what does.
    padding = list(_segments(ordered, share.first + share.valid, share.rows - share.valid))
    if padding:
        rows = share.rows - share.valid
        yield Window(share.valid, rows, padding, Order(rows, mode="sequential"))


def _segments(groups: Sequence[RowGroup], first: int, rows: int) -> Iterator[Segment]:
    """`rows` rows of row groups one after the other; behind the last comes the first."""
    ends = np.cumsum([group.rows for group in groups])
    total = int(ends[-1]) if len(groups) else 0
    at, left = first, rows
    while left:
        at %= total
        place = int(np.searchsorted(ends, at, side="right"))
        group = groups[place]
        begin = group.rows - (int(ends[place]) - at)
        end = min(group.rows, begin + left)
        yield Segment(group, begin, end)
        at, left = at + end - begin, left - (end - begin)
