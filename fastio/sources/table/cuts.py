"""Divides tables into parts that are read by themselves: the units in which a source is packed.

Where a part begins and ends is known before any row is read: from row groups, record batches, or
the sizes of files of lines. It depends on the tables alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import SourceChanged
from fastio.sources.table.reading import Place, Spans, Table

# A table that can only be read as a whole may have this share of the bytes of all tables.
_MOST_OF_ALL = 1 / 16


@dataclass(frozen=True)
class Cut:
    """Units of tables, each of which consists of consecutive parts of one or more tables.

    Attributes:
        spans: int64 (parts, 4): the number of the table, and the part as in `Spans.places`.
        bounds: int64 (units + 1,): the first part of each unit, and the number of parts.
        is_whole: bool (parts,), whether a part is a table that is read from its beginning.
    """

    spans: NDArray[np.int64]
    bounds: NDArray[np.int64]
    is_whole: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def stamp(self) -> str:
        """Returns a hash of where units begin and end."""
        digest = xxhash.xxh3_64(self.spans.tobytes())
        digest.update(self.bounds.tobytes())
        return digest.hexdigest()

    def parts(self, unit: int) -> Iterator[tuple[int, Place]]:
        """Yields the number of the table and the place of each part of a unit."""
        for table, begin, end, nbytes in self.spans[
            self.bounds[unit] : self.bounds[unit + 1]
        ].tolist():
            yield table, (begin, end, nbytes)

    def nbytes(self, unit: int) -> int:
        """Returns about how many bytes of the source a unit has."""
        return int(self.spans[self.bounds[unit] : self.bounds[unit + 1], 3].sum())

    def beginning_bytes(self, unit: int, most: int) -> int:
        """Returns how many bytes, up to about `most`, can be read of the first part of a unit.

        0 if the part can only be read as a whole.
        """
        first = int(self.bounds[unit])
        return 0 if self.is_whole[first] else min(most, int(self.spans[first, 3]))


def cut(tables: Sequence[Table], columns: Sequence[str], step: int) -> Cut | None:
    """Divides tables into units of about `step` bytes.

    Args:
        tables: The tables.
        columns: The columns that will be read.
        step: The wanted size of a unit. A part that is larger is a unit by itself.

    Returns:
        The units; None if a table can be read only once, or if one that can only be read from its
        beginning has more than a sixteenth of all bytes: there would be few units, which cannot be
        resumed in between.
    """
    found: list[Spans] = []
    for table in tables:
        spans = table.spans(columns, step)
        if spans is None:
            return None
        found.append(spans)
    sizes = [int(spans.places[:, 2].sum()) for spans in found]
    wholes = [size for spans, size in zip(found, sizes, strict=True) if spans.is_whole]
    if wholes and max(wholes) > _MOST_OF_ALL * sum(sizes):
        return None
    counts = [len(spans.places) for spans in found]
    numbers = np.repeat(np.arange(len(found), dtype=np.int64), counts)
    places = np.concatenate([spans.places for spans in found])
    is_whole = np.repeat(np.array([spans.is_whole for spans in found], np.bool_), counts)
    return Cut(np.column_stack([numbers, places]), _bounds(places[:, 2], step), is_whole)


def _bounds(sizes: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Returns where groups of consecutive sizes begin, each with a sum near `step`."""
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        first = bounds[-1]
        wanted = step + (int(ends[first - 1]) if first else 0)
        at = int(np.searchsorted(ends, wanted))  # the first part with which it is large enough
        closer = at > first and (at == len(ends) or wanted - ends[at - 1] <= ends[at] - wanted)
        bounds.append(min(at if closer else at + 1, len(sizes)))
    return np.array(bounds, np.int64)


def line_bytes(file: Any, name: str, begin: int, end: int, block: int) -> Iterator[bytes]:
    """Yields the bytes of the lines of a file that begin in [begin, end), in blocks.

    Args:
        file: The file, to be read from byte `max(begin - 1, 0)` on.
        name: Its name, for messages.
        begin, end: The range.
        block: The number of bytes to read at a time.

    Raises:
        SourceChanged: The file ends before `end`.
    """
    at, inside = max(begin - 1, 0), begin == 0
    while at < end or inside:
        data = file.read(block)
        if not data:
            break
        first, at = at, at + len(data)
        if not inside:
            cut = data.find(b"\n") + 1
            if not cut:
                continue
            if first + cut >= end:
                return
            data, first, inside = data[cut:], first + cut, True
        if at >= end:
            # The last line that begins before the end may go on after it.
            stop = data.find(b"\n", max(end - 1 - first, 0)) + 1
            if stop:
                yield data[:stop]
                return
        if data:
            yield data
    if at < end:
        raise SourceChanged(
            f"{name} has {at:,} bytes, and had at least {end:,} when it was opened: it was "
            "truncated or replaced. Pack it again, and do not write to files that are being read"
        )
