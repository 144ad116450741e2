"""Many strings in one string of bytes, which takes a tenth of the memory of a list."""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

T = TypeVar("T")


class Computed(Sequence[T]):
    """A sequence whose items are made when they are asked for, such as one for each file."""

    @abstractmethod
    def _at(self, number: int) -> T:
        """Returns an item, whose number is in [0, len(self))."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._at(number) for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"row {index} is out of range: there are {len(self)} files")
        return self._at(number)


class Texts(Computed[str]):
    """Strings, such as names of files, encoded as the system encodes names.

    Attributes:
        data: The bytes of all strings, one after the other.
        ends: int64 (n,), where each string ends in `data`.
    """

    def __init__(self, data: bytes, ends: NDArray[np.int64]) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Returns the strings of a list."""
        return cls.of_bytes([os.fsencode(text) for text in texts])

    @classmethod
    def of_bytes(cls, encoded: Sequence[bytes]) -> Texts:
        """Returns the strings of a list of encoded ones."""
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), dtype=np.int64)
        return cls(b"".join(encoded), ends)

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Returns the strings of several objects, one after the other."""
        starts = np.cumsum([0, *(len(part.data) for part in parts)])
        ends = [part.ends + start for part, start in zip(parts, starts[:-1], strict=True)]
        joined = np.concatenate(ends) if ends else np.zeros(0, np.int64)
        return cls(b"".join(part.data for part in parts), joined)

    def __len__(self) -> int:
        return len(self.ends)

    def _at(self, number: int) -> str:
        begin = int(self.ends[number - 1]) if number else 0
        return os.fsdecode(self.data[begin : int(self.ends[number])])

    def encoded(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Returns the bytes of strings, whose numbers int64 (n,) are in [0, len(self))."""
        begins = np.where(rows > 0, self.ends[rows - 1], 0).tolist()
        parts = zip(begins, self.ends[rows].tolist(), strict=True)
        return [self.data[begin:end] for begin, end in parts]

    def taken(self, rows: NDArray[np.int64]) -> Texts:
        """Returns the strings of some numbers, int64 (n,), in their order."""
        return Texts.of_bytes(self.encoded(rows))

    def digest(self) -> bytes:
        """Returns a hash of the strings and their order."""
        return xxhash.xxh3_128(self.ends.tobytes() + self.data).digest()


class Names(Computed[str]):
    """A list of names of files that takes about 25 bytes for each. Names can be added.

    Args:
        names: The first names.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._data, self._ends = bytearray(), array("q", [0])
        self._sorted: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None
        for name in names:
            self.append(name)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _at(self, number: int) -> str:
        return os.fsdecode(self._encoded(number))

    def append(self, name: str) -> None:
        """Adds a name."""
        self._data += os.fsencode(name)
        self._ends.append(len(self._data))
        self._sorted = None

    def find(self, name: str) -> int | None:
        """Returns the number of a name in the list, or None.

        The first call after names were added sorts the hashes of all names, 16 bytes for each.
        """
        if self._sorted is None:
            hashes = map(xxhash.xxh3_64_intdigest, map(self._encoded, range(len(self))))
            found = np.fromiter(hashes, np.uint64, len(self))
            order = np.argsort(found, kind="stable")
            self._sorted = found[order], order
        known, order = self._sorted
        wanted = os.fsencode(name)
        value = np.uint64(xxhash.xxh3_64_intdigest(wanted))
        place = int(np.searchsorted(known, value))
        while place < len(known) and known[place] == value:
            if self._encoded(int(order[place])) == wanted:
                return int(order[place])
            place += 1
        return None

    def compared(self, there: Iterable[str]) -> tuple[str | None, Names]:
        """Compares these names with others.

        Returns:
            The first of these names that the others lack, or None; and the others that are not
            among these names.
        """
        found, others = np.zeros(len(self), np.bool_), Names()
        for name in there:
            number = self.find(name)
            if number is None:
                others.append(name)
            else:
                found[number] = True
        return (None if found.all() else self[int(found.argmin())]), others

    def buffers(self) -> tuple[array[int], bytearray]:
        """Returns where each name ends, after a 0, and the bytes of all names, without copies."""
        return self._ends, self._data

    def _encoded(self, number: int) -> bytes:
        return bytes(memoryview(self._data)[self._ends[number] : self._ends[number + 1]])


class FileSizes(Mapping[str, int]):
    """Names and sizes of files, in a fifth of the memory of a dict.

    Args:
        files: Their names and sizes; each name comes once.
    """

    def __init__(self, files: Iterable[tuple[str, int]] = ()) -> None:
        self._names, self._sizes = Names(), array("q")
        for name, nbytes in files:
            self._names.append(name)
            self._sizes.append(nbytes)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> int:
        number = self._names.find(name)
        if number is None:
            raise KeyError(name)
        return self._sizes[number]
