"""Reads and writes the indexes of JPEGs as docs/format.md describes them, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable

# The numbers before the points: bytes, rows and columns of MCUs, width of an MCU, restart interval,
# components, bytes in the middle, MCUs from point to point, points.
HEADER = 9


def numbers(data: bytes) -> list[int]:
    """Returns the numbers of an index as they are stored."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value)
            value = shift = 0
    assert shift == 0
    return found


def write(values: Iterable[int]) -> bytes:
    """Returns the bytes of an index with these numbers."""
    out = bytearray()
    for value in values:
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def points(values: list[int]) -> list[tuple[int, list[int]]]:
    """Returns (bit, the last DC of each component) of every point."""
    _, _, columns, _, _, components, _, step, count = values[:HEADER]
    a_row = -(-columns // step)
    steps = values[HEADER:]
    assert len(steps) == count * (1 + components)
    bit = 0
    found: list[tuple[int, list[int]]] = []
    for number, at in enumerate(range(0, len(steps), 1 + components)):
        bit += steps[at]
        like = [0] * components
        if number:
            like = found[number - a_row if number >= a_row else number - 1][1]
        differences = [~(n >> 1) if n & 1 else n >> 1 for n in steps[at + 1 :][:components]]
        found.append((bit, [dc + by for dc, by in zip(like, differences, strict=True)]))
    return found


def shifted(data: bytes) -> bytes:
    """Returns an index that is well-formed and wrong: all points but the first have other DCs."""
    values = numbers(data)
    components = values[5]
    first = HEADER + 1 + components + 1  # the first component's step to the second point
    values[first] = values[first] + 60 if values[first] % 2 == 0 else 60
    return write(values)
