"""Ranges of objects received into memory; what lies close together comes by one request."""

from __future__ import annotations

from collections.abc import Iterable

from fastio.staging.blocks import Range
from fastio.store import Store

# Between two ranges, such as the headers of tars: what costs less than another request.
_PASSED_OVER_BYTES = 16 << 10


def receive(store: Store, wanted: Iterable[tuple[Range, memoryview]]) -> None:
    """Fetches ranges into memory of the caller's, which has as many bytes as they.

    Raises:
        StoreError, SourceNotFound: they cannot be read.
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
    """Whether a range begins right behind a byte of an object, or little behind it."""
    return name == following.name and 0 <= following.offset - end <= _PASSED_OVER_BYTES
