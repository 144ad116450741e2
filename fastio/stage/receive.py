"""Receives ranges of objects into memory. One request serves ranges that lie close together."""

from __future__ import annotations

from collections.abc import Iterable

from fastio.stage.blocks import Range
from fastio.store import Store

# The largest gap between two ranges, such as a tar header, that is cheaper than another request.
_PASSED_OVER_BYTES = 16 << 10


def receive(store: Store, wanted: Iterable[tuple[Range, memoryview]]) -> None:
    """Fetches ranges into the caller's memory; each view has the length of its range.

    Raises:
        StoreError, SourceNotFound: If they cannot be read.
    """
    ordered = sorted((each for each in wanted if each[0].length), key=lambda each: each[0][:3])
    at = 0
    while at < len(ordered):
        name, begin, _, expect = ordered[at][0]
        end, views = begin, list[memoryview]()
        while at < len(ordered) and _goes_on(name, end, ordered[at][0]):
            (_, offset, length, _), view = ordered[at]
            if offset > end:
                views.append(memoryview(bytearray(offset - end)))
            views.append(view)
            end = offset + length
            at += 1
        store.read_into(name, begin, views, expect=expect)


def _goes_on(name: str, end: int, following: Range) -> bool:
    """Returns whether a range begins at or shortly after byte `end` of the same object."""
    return name == following.name and 0 <= following.offset - end <= _PASSED_OVER_BYTES
