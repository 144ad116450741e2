"""The descriptions of the shards of a dataset that is being packed, in temporary files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.packed.ipc import number_array
from fastio.packed.shard_writer import ShardEntry
from fastio.runtime.spilled import SpilledBytes, SpilledNumbers
from fastio.runtime.texts import Computed, Names

_HASHES = ("xxh3", "head_xxh3", "columns_xxh3")
_NUMBERS = ("rows", "bytes", "head_bytes", "foot_bytes")
# Hashes are stored as int64, like all other values. 2**64 is subtracted from this number and all
# larger ones.
_SIGN = 1 << 63
_AT_ONCE = 1 << 14  # shards of which a column is copied at once


class ShardTable(Computed[ShardEntry]):
    """A list of shards, to which shards can be added, with a column for each of their values.

    All shards have values of the same fields, those of one schema. The values of about the last
    hundred shards are in memory, and those of the others in temporary files. Not thread-safe.

    Args:
        entries: The first shards.
        folder: A folder on the file system to use for temporary files; None for the usual one.

    Attributes:
        names: The names of the shards.

    Raises:
        OSError: A temporary file cannot be written, in any method.
    """

    def __init__(self, entries: Iterable[ShardEntry] = (), folder: Path | None = None) -> None:
        self.names = Names(folder=folder)
        self._folder = folder
        self._of_fields: tuple[str, ...] = ()
        self._places: dict[str, int] = {}  # of values in the rows of `_values`
        self._values: SpilledNumbers | None = None  # a row for each shard
        self.extend(entries)

    def __len__(self) -> int:
        return len(self.names)

    def _at(self, number: int) -> ShardEntry:
        assert self._values is not None
        row = dict(zip(self._places, self._values.row(number), strict=True))
        values: dict[str, Any] = {name: row[name] for name in _NUMBERS}
        values |= {name: f"{row[name] % (2 * _SIGN):016x}" for name in _HASHES}
        of_fields = {name: row[name] for name in self._of_fields}
        return ShardEntry(name=self.names[number], **values, of_fields=of_fields)

    def extend(self, entries: Iterable[ShardEntry]) -> None:
        """Adds shards; KeyError if one lacks a value that the first one has."""
        for entry in entries:
            if self._values is None:
                self._of_fields = tuple(entry.of_fields)
                every = (*_NUMBERS, *_HASHES, *self._of_fields)
                self._places = {name: place for place, name in enumerate(every)}
                self._values = SpilledNumbers(len(every), self._folder)
            numbers = [getattr(entry, name) for name in _NUMBERS]
            hashes = [(int(getattr(entry, n), 16) + _SIGN) % (2 * _SIGN) - _SIGN for n in _HASHES]
            of_fields = [entry.of_fields[name] for name in self._of_fields]
            self._values.append((*numbers, *hashes, *of_fields))
            self.names.append(entry.name)

    def total(self, name: str, start: int = 0) -> int:
        """Returns the sum of a column of numbers over the shards from the number `start` on."""
        if self._values is None:
            return 0
        return int(self._values.view()[start:, self._places[name]].sum())

    def columns(self, before: Mapping[str, pa.Array] | None = None) -> Mapping[str, pa.Array]:
        """Returns the columns of the manifest, except `first_row`, from temporary files.

        Args:
            before: The columns of shards that come before these, which are copied.
        """
        numbers, places = SpilledBytes(self._folder), {}
        for name in self._places.keys() - set(_HASHES):
            begin = len(numbers)
            for part in chain(_parts(_integers_of(before, name)), _parts(self._column(name))):
                numbers.append(part.tobytes())
            places[name] = begin, len(numbers)
        view = numbers.view()
        found = {
            name: number_array(np.frombuffer(view[begin:end], np.int64))
            for name, (begin, end) in places.items()
        }
        for name in ("name", *_HASHES):
            ends, data = SpilledBytes(self._folder), SpilledBytes(self._folder)
            ends.append(bytes(8))
            for lengths, part_data in chain(_texts_of(before, name), self._texts(name)):
                ends.append((len(data) + np.cumsum(lengths)).tobytes())
                data.append(part_data)
            found[name] = _texts(ends.view(), data.view())
        return found

    def _column(self, name: str) -> NDArray[np.int64]:
        """Returns a column of numbers, or the hashes of a column as int64."""
        if self._values is None:
            return np.empty(0, np.int64)
        return self._values.view()[:, self._places[name]]

    def _texts(self, name: str) -> Iterator[tuple[NDArray[np.int64], bytes]]:
        """Yields the lengths and the bytes of the texts of a column, those of some shards."""
        if name == "name":
            yield from _text_parts(*self.names.views())
            return
        for part in _parts(self._column(name)):
            digits = part.view(np.uint64).astype(">u8").tobytes().hex().encode()
            yield np.full(len(part), 16), digits


def first_rows(rows: NDArray[np.int64], folder: Path | None = None) -> pa.Array:
    """Returns the number of the first row of each shard, given the number of rows of each."""
    found, row = SpilledBytes(folder), 0
    for part in _parts(rows):
        ends = row + np.cumsum(part)
        found.append((ends - part).tobytes())
        row = int(ends[-1])
    return number_array(np.frombuffer(found.view(), np.int64))


def _parts(values: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yields values in contiguous arrays of limited size."""
    for begin in range(0, len(values), _AT_ONCE):
        yield np.ascontiguousarray(values[begin : begin + _AT_ONCE])


def _integers_of(columns: Mapping[str, pa.Array] | None, name: str) -> NDArray[np.int64]:
    found: Any = np.empty(0, np.int64) if columns is None else np.from_dlpack(columns[name])
    return found  # type: ignore[no-any-return]


def _texts_of(
    columns: Mapping[str, pa.Array] | None, name: str
) -> Iterator[tuple[NDArray[np.int64], bytes]]:
    """Yields what `ShardTable._texts` does, of another column."""
    if columns is not None:
        _, ends, data = columns[name].buffers()
        count = len(columns[name]) + 1
        yield from _text_parts(np.frombuffer(ends, np.int64, count), memoryview(data or b""))


def _text_parts(
    ends: NDArray[np.int64], data: memoryview
) -> Iterator[tuple[NDArray[np.int64], bytes]]:
    for begin in range(0, len(ends) - 1, _AT_ONCE):
        some = ends[begin : begin + _AT_ONCE + 1]
        yield np.diff(some), bytes(data[some[0] : some[-1]])


def _texts(ends: memoryview, data: memoryview) -> pa.Array:
    count = len(ends) // 8 - 1
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(data))
