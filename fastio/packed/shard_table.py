"""The descriptions of the shards of a dataset that is being packed, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.packed.shard_writer import ShardEntry
from fastio.runtime.texts import Computed, Names

_HASHES = ("xxh3", "head_xxh3", "columns_xxh3")
_NUMBERS = ("rows", "bytes", "head_bytes", "foot_bytes")


class ShardTable(Computed[ShardEntry]):
    """A list of shards, to which shards can be added, with a column for each of their values.

    A shard takes about 130 bytes, and as a `ShardEntry` more than ten times as much. All shards
    have the same values, those of the fields of one schema. Not thread-safe.

    Args:
        entries: The first shards.

    Attributes:
        names: The names of the shards.
    """

    def __init__(self, entries: Iterable[ShardEntry] = ()) -> None:
        self.names = Names()
        self._hashes = {name: array("Q") for name in _HASHES}
        self._numbers = {name: array("q") for name in _NUMBERS}
        self._of_fields: dict[str, array[int]] | None = None
        self.extend(entries)

    def __len__(self) -> int:
        return len(self.names)

    def _at(self, number: int) -> ShardEntry:
        values: dict[str, Any] = {name: each[number] for name, each in self._numbers.items()}
        values |= {name: f"{each[number]:016x}" for name, each in self._hashes.items()}
        of_fields = {name: each[number] for name, each in (self._of_fields or {}).items()}
        return ShardEntry(name=self.names[number], **values, of_fields=of_fields)

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
            self.names.append(entry.name)

    def total(self, name: str, start: int = 0) -> int:
        """Returns the sum of a column of numbers over the shards from the number `start` on."""
        columns = self._numbers | (self._of_fields or {})
        return sum(islice(columns[name], start, None)) if len(self) else 0

    def columns(self) -> Mapping[str, pa.Array]:
        """Returns the columns of the manifest, except `first_row`. They share this memory.

        Nothing can be added as long as they exist.
        """
        found = {"name": _texts(*map(pa.py_buffer, self.names.buffers()))}
        for name, column in (self._numbers | (self._of_fields or {})).items():
            found[name] = integers(column)
        ends = pa.py_buffer(np.arange(0, 16 * len(self) + 1, 16, dtype=np.int64))
        for name, column in self._hashes.items():
            digits = np.frombuffer(column, np.uint64).astype(">u8").tobytes().hex().encode()
            found[name] = _texts(ends, pa.py_buffer(digits))
        return found


def integers(values: array[int] | NDArray[np.int64]) -> pa.Array:
    """Returns int64 values as an array that shares their memory. Does not import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _texts(ends: pa.Buffer, data: pa.Buffer) -> pa.Array:
    return pa.LargeStringArray.from_buffers(ends.size // 8 - 1, ends, data)
