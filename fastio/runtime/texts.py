"""Many strings in one string of bytes, a tenth of the memory of a list, or in temporary files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.runtime.spilled import SpilledBytes, SpilledNumbers, TemporaryData

_INDEXED_IN_MEMORY = 8192  # names
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
    """A list of names of files, in temporary files if it is long. Names can be added.

    Args:
        names: The first names.
        folder: The folder on whose file system temporary files lie; None for the usual one.

    Raises:
        OSError: A temporary file cannot be written, here or when names are added or looked for.
    """

    def __init__(self, names: Iterable[str] = (), folder: Path | None = None) -> None:
        self._folder = folder
        self._data, self._ends = SpilledBytes(folder), SpilledNumbers(1, folder)
        self._ends.append((0,))
        self._index: NDArray[np.uint64] | None = None
        for name in names:
            self.append(name)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[str]:
        ends, data = self.views()
        for number in range(len(ends) - 1):
            yield os.fsdecode(bytes(data[ends[number] : ends[number + 1]]))

    def _at(self, number: int) -> str:
        return os.fsdecode(self._encoded(number))

    def append(self, name: str) -> None:
        """Adds a name."""
        self._data.append(os.fsencode(name))
        self._ends.append((len(self._data),))
        self._index = None

    def find(self, name: str) -> int | None:
        """Returns the number of a name in the list, or None.

        The first call after names were added sorts the hashes of all names, 8 bytes for each.
        """
        if self._index is None:
            self._index = self._indexed()
        wanted = os.fsencode(name)
        mask = self._mask
        low = xxhash.xxh3_64_intdigest(wanted) & ~mask
        place = int(np.searchsorted(self._index, np.uint64(low)))
        while place < len(self._index) and int(self._index[place]) & ~mask == low:
            number = int(self._index[place]) & mask
            if self._encoded(number) == wanted:
                return number
            place += 1
        return None

    @property
    def _mask(self) -> int:
        """The bits of a number in the index, in which a hash has the others."""
        return (1 << len(self).bit_length()) - 1

    def _indexed(self) -> NDArray[np.uint64]:
        """Returns the hashes of all names, sorted, with the number of the name in the low bits."""
        count, mask = len(self), self._mask
        if count <= _INDEXED_IN_MEMORY:
            index = np.empty(count, np.uint64)
        else:
            file = TemporaryData(self._folder)
            file.reserve(8 * count)
            index = np.frombuffer(file.mapped(writable=True), np.uint64)
        ends, data = self.views()
        for number in range(count):
            digest = xxhash.xxh3_64_intdigest(data[ends[number] : ends[number + 1]])
            index[number] = digest & ~mask | number
        index.sort()
        return index

    def compared(self, there: Iterable[str]) -> tuple[str | None, Names]:
        """Compares these names with others, each of which comes once.

        Returns:
            The first of these names that the others lack, or None; and the others that are not
            among these names.
        """
        found, others = bytearray(len(self) // 8 + 1), Names(folder=self._folder)
        left = len(self)
        for name in there:
            number = self.find(name)
            if number is None:
                others.append(name)
            elif not found[number // 8] & 1 << number % 8:
                found[number // 8] |= 1 << number % 8
                left -= 1
        missing = (n for n in range(len(self)) if not found[n // 8] & 1 << n % 8)
        return (self[next(missing)] if left else None), others

    def views(self) -> tuple[NDArray[np.int64], memoryview]:
        """Returns where each name ends, after a 0, and the bytes of all names."""
        return self._ends.view()[:, 0], self._data.view()

    def _encoded(self, number: int) -> bytes:
        return self._data.read(*self._ends.pair(number))


class FileSizes(Mapping[str, int]):
    """Names and sizes of files, in temporary files if they are many.

    Args:
        files: Their names and sizes; each name comes once.
    """

    def __init__(self, files: Iterable[tuple[str, int]] = ()) -> None:
        self._names, self._sizes = Names(), SpilledNumbers()
        for name, nbytes in files:
            self._names.append(name)
            self._sizes.append((nbytes,))

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> int:
        number = self._names.find(name)
        if number is None:
            raise KeyError(name)
        return self._sizes.row(number)[0]
