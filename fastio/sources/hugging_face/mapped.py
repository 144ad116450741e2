"""Which memory of this process is a part of a file, as Linux tells it in /proc/self/maps."""

from __future__ import annotations

import bisect
import os
from typing import NamedTuple

import pyarrow as pa

_COMPARED_BYTES = 64


class Mapping(NamedTuple):
    """Memory that is mapped from a file.

    Attributes:
        begin, end: addresses.
        offset: of its first byte in the file.
        path: of the file.
    """

    begin: int
    end: int
    offset: int
    path: str

    def goes_on_in(self, other: Mapping) -> bool:
        """Whether another lies behind it, in the file as in memory."""
        end = self.offset + self.end - self.begin
        return (self.end, end, self.path) == (other.begin, other.offset, other.path)


class MappedFiles:
    """The files that this process has mapped when this is made."""

    def __init__(self) -> None:
        self._mappings: list[Mapping] = []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    self._add(line.rstrip("\n").split(None, 5))
        except OSError:  # another system: nothing is known to be a file's
            self._mappings = []
        self._begins = [mapping.begin for mapping in self._mappings]

    def find(self, buffer: pa.Buffer) -> tuple[str, int] | None:
        """The path of the file that a buffer is a part of, and the offset there; None: of none."""
        place = bisect.bisect_right(self._begins, buffer.address) - 1
        if place < 0 or not buffer.size:
            return None
        mapping = self._mappings[place]
        if buffer.address + buffer.size > mapping.end:
            return None
        offset = buffer.address - mapping.begin + mapping.offset
        return (mapping.path, offset) if _is_there(mapping.path, offset, buffer) else None

    def _add(self, parts: list[str]) -> None:
        if len(parts) < 6 or not parts[5].startswith("/"):
            return
        begin, end = (int(part, 16) for part in parts[0].split("-"))
        found = Mapping(begin, end, int(parts[2], 16), parts[5])
        last = self._mappings[-1] if self._mappings else None
        if last is not None and last.goes_on_in(found):
            self._mappings[-1] = last._replace(end=end)
        else:
            self._mappings.append(found)


def _is_there(path: str, offset: int, buffer: pa.Buffer) -> bool:
    """Whether the file, which may have been replaced since, begins as the buffer does there."""
    count = min(_COMPARED_BYTES, buffer.size)
    try:
        with open(path, "rb", buffering=0) as file:
            found = os.pread(file.fileno(), count, offset)
            return bool(found == buffer.slice(0, count).to_pybytes())
    except OSError:
        return False
