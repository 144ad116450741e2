"""The descriptions of the shards of a dataset that is being packed, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from fastio.packed.shard_writer import ShardEntry

_HASHES = ("xxh3", "head_xxh3", "columns_xxh3")
_NUMBERS = ("rows", "bytes", "head_bytes", "foot_bytes")


class ShardTable(Sequence[ShardEntry]):
    """A list of shards, to which shards can be added, with a column for each of their values.

    A shard takes about 130 bytes, and as a `ShardEntry` more than ten times as much. All shards
    have the same values, those of the fields of one schema. Not thread-safe.

    Args:
        entries: The first shards.
    """

    def __init__(self, entries: Iterable[ShardEntry] = ()) -> None:
        self._names, self._ends = bytearray(), array("q", [0])
        self._hashes = {name: array("Q") for name in _HASHES}
        self._numbers = {name: array("q") for name in _NUMBERS}
        self._of_fields: dict[str, array[int]] | None = None
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardEntry]: ...
    def __getitem__(self, index: int | slice) -> ShardEntry | list[ShardEntry]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        values: dict[str, Any] = {name: each[number] for name, each in self._numbers.items()}
        values |= {name: f"{each[number]:016x}" for name, each in self._hashes.items()}
        of_fields = {name: each[number] for name, each in (self._of_fields or {}).items()}
        return ShardEntry(name=self._name(number), **values, of_fields=of_fields)

    def names(self) -> Iterator[str]:
        """Yields the names of the shards."""
        return map(self._name, range(len(self)))

    def extend(self, entries: Iterable[ShardEntry]) -> None:
        """Adds shards; KeyError if one lacks a value that the first one has."""
        for entry in entries:
            if self._of_fields is None:
                self._of_fields = {name: array("q") for name in entry.of_fields}
            for name, column in self._of_fields.items():
                column.append(entry.of_fields[name])
            for name, column in self._numbers.items():
                column.append(getattr(entry, name))
            for name, column in self._hashes.items():
                column.append(int(getattr(entry, name), 16))
            self._names += entry.name.encode()
            self._ends.append(len(self._names))

    def columns(self) -> Mapping[str, pa.Array]:
        """Returns the columns of the manifest, except `first_row`. They share this memory.

        Nothing can be added as long as they exist.
        """
        found = {"name": _texts(pa.py_buffer(self._ends), pa.py_buffer(self._names))}
        for name, column in (self._numbers | (self._of_fields or {})).items():
            found[name] = pa.array(np.frombuffer(column, np.int64))
        ends = pa.py_buffer(np.arange(0, 16 * len(self) + 1, 16, dtype=np.int64))
        for name, column in self._hashes.items():
            digits = np.frombuffer(column, np.uint64).astype(">u8").tobytes().hex().encode()
            found[name] = _texts(ends, pa.py_buffer(digits))
        return found

    def _name(self, number: int) -> str:
        return self._names[self._ends[number] : self._ends[number + 1]].decode()


def _texts(ends: pa.Buffer, data: pa.Buffer) -> pa.Array:
    return pa.LargeStringArray.from_buffers(ends.size // 8 - 1, ends, data)
