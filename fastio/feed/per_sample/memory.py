"""Memory that worker processes share: files without a name, which no process can leave behind."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]


class SharedExtent(NamedTuple):
    """Where bytes lie in shared memory: the number of a segment, and an offset in it."""

    segment: int
    offset: int


class SharedMemory:
    """Allocates arrays in memory that worker processes can map. Thread-safe.

    A segment of memory is freed when its array and all views of it are garbage, and no process maps
    it any more. The system frees the segments of a process that is killed.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._begins: dict[int, int] = {}  # number of the segment at an address
        self._files: dict[int, tuple[int, int]] = {}  # descriptor and size of each segment

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def allocate(self, shape: tuple[int, ...], dtype: str) -> AnyArray:
        """Returns an array in a segment of its own."""
        nbytes = max(1, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        file = _nameless_file()
        try:
            os.ftruncate(file, nbytes)
            mapped = mmap.mmap(file, nbytes)
        except BaseException:
            os.close(file)
            raise
        array: AnyArray = np.ndarray(shape, dtype, buffer=mapped)
        number, address = next(self._numbers), _address(array)
        self._files[number] = file, nbytes
        self._begins[address] = number
        # The mapping is freed when neither this array nor a view of it refers to it any more.
        weakref.finalize(mapped, self._forget, number, address).atexit = False
        return array

    def extent(self, array: AnyArray) -> SharedExtent:
        """Returns where an array lies that begins with its segment."""
        return SharedExtent(self._begins[_address(array)], 0)

    def file(self, segment: int) -> tuple[int, int]:
        """Returns the file descriptor of a segment, and its size in bytes."""
        return self._files[segment]

    def freed(self, known: set[int]) -> list[int]:
        """Returns those of some segments that do not exist any more."""
        return [segment for segment in known if segment not in self._files]

    def _forget(self, number: int, address: int) -> None:
        file, _ = self._files.pop(number)
        # Another segment may have been mapped at the same address since.
        if self._begins.get(address) == number:
            del self._begins[address]
        os.close(file)


class MappedMemory:
    """The segments that a worker process has mapped."""

    def __init__(self) -> None:
        self._arrays: dict[int, AnyArray] = {}

    def add(self, segment: int, file: int, nbytes: int) -> None:
        """Maps a segment and closes its file descriptor."""
        try:
            self._arrays[segment] = np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
        finally:
            os.close(file)

    def drop(self, segments: list[int]) -> None:
        """Removes segments that are not used any more."""
        for segment in segments:
            self._arrays.pop(segment, None)

    def bytes_at(self, extent: SharedExtent, nbytes: int | None = None) -> AnyArray:
        """Returns the bytes of a segment from an extent's offset on: uint8 (n,)."""
        end = None if nbytes is None else extent.offset + nbytes
        return self._arrays[extent.segment][extent.offset : end]


def _address(array: AnyArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _nameless_file() -> int:
    """Returns the descriptor of a file in memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fastio", os.MFD_CLOEXEC)
    # Systems other than Linux have no memfd_create, so an unlinked file is used.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
