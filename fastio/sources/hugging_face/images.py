"""The images of a column: the files that have their bytes, and where in them each image is.

Data of the datasets package are mapped from files; /proc/self/maps tells which memory is of which.
"""

from __future__ import annotations

import bisect
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import DatasetClosed, ShardCorrupt
from fastio.runtime.lifecycle import new_lock
from fastio.sources.hugging_face.plain import bare
from fastio.sources.hugging_face.rows import SelectedRows
from fastio.sources.named_files import NamedFiles
from fastio.sources.table.embedded import (
    EncodedImages,
    EncodedLists,
    bytes_and_paths,
    encoded_images,
    encoded_lists,
)

_COMPARED_BYTES = 64


class MappedRange(NamedTuple):
    """Memory [begin, end) that is mapped from a file, and the offset of its first byte there."""

    begin: int
    end: int
    offset: int
    path: str

    def goes_on_in(self, other: MappedRange) -> bool:
        """Returns whether another follows it, in the file as in memory."""
        end = self.offset + self.end - self.begin
        return (self.end, end, self.path) == (other.begin, other.offset, other.path)


class MappedFiles:
    """The files that this process has mapped when the object is made, as Linux tells it."""

    def __init__(self) -> None:
        self._mappings: list[MappedRange] = []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    self._add(line.rstrip("\n").split(None, 5))
        except OSError:  # another system: nothing is known to be a file's
            self._mappings = []
        self._begins = [mapping.begin for mapping in self._mappings]

    def find(self, buffer: pa.Buffer) -> tuple[str, int] | None:
        """Returns the path of the file that contains a buffer, and its offset there, or None."""
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
        found = MappedRange(begin, end, int(parts[2], 16), parts[5])
        last = self._mappings[-1] if self._mappings else None
        if last is not None and last.goes_on_in(found):
            self._mappings[-1] = last._replace(end=end)
        else:
            self._mappings.append(found)


def _is_there(path: str, offset: int, buffer: pa.Buffer) -> bool:
    """Returns whether the file, which may have been replaced, has the buffer's first bytes."""
    count = min(_COMPARED_BYTES, buffer.size)
    try:
        with open(path, "rb", buffering=0) as file:
            found = os.pread(file.fileno(), count, offset)
            return bool(found == buffer.slice(0, count).to_pybytes())
    except OSError:
        return False


OWN_FILE = -1  # in place of a file's number: the row has a path and no bytes
NOWHERE = -2  # the row has neither, or its path may not be read

_JPEG_BEGINS = b"\xff\xd8"
_LOOKED_AT = 16  # rows that are sampled to find out the type of the images


class ImageExtents(NamedTuple):
    """The positions of images, one entry for each row.

    Attributes:
        file: int32, index in `ImageColumn.files`, or OWN_FILE or NOWHERE.
        offset, length: int64, in that file.
        paths: The paths of the rows with OWN_FILE, by their position among the rows.
    """

    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    paths: dict[int, str]


@dataclass(frozen=True)
class _Part:
    """The images of one record batch, of all lists if the column has lists.

    Attributes:
        images: Their bytes.
        paths: Their paths; None if the column has none.
        lists: The lists of a column of lists; None for one of images.
        file, begin: The number of the file that contains the bytes, and the offset there.
    """

    images: EncodedImages
    paths: pa.Array | None
    lists: EncodedLists | None
    file: int
    begin: int

    def numbers(self, local: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers of images in `images`, given their rows and places in lists."""
        return local if self.lists is None else self.lists.first[local] + index


class ImageColumn:
    """The images of one column, or of its lists of images. Thread-safe.

    Images in memory that is not mapped from a file are copied once, when they are first asked for,
    to an unnamed file, so that threads read all images in the same way.

    Args:
        rows: The rows of the dataset.
        path: The names of the column and of the struct fields inside it.
        named: The files that its paths may refer to.
        lists: Whether it has lists of images.
    """

    def __init__(
        self, rows: SelectedRows, path: tuple[str, ...], named: NamedFiles, lists: bool = False
    ) -> None:
        self._rows = rows
        self.lists = lists
        self._named = named
        self._path = path
        self._mapped = MappedFiles()
        self._files: list[str] = []
        self._numbers: dict[str, int] = {}
        self._parts: dict[int, _Part] = {}
        self._memory: list[int] = []
        self._lock = new_lock()
        self._closed = False
        self._has_jpegs: bool | None = None
        self._end: Callable[[], Any] = weakref.finalize(self, _close_all, self._memory)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files. More are added as rows are asked for."""
        return tuple(self._files)

    def counts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns how many images the lists of rows have; NULL_LIST where a list is null.

        Raises:
            IndexError: If a row number is out of range.
            ShardCorrupt: If the column is damaged.
            DatasetClosed: After `close`.
        """
        found = np.empty(len(rows), np.int64)
        for batch, places, local in self._rows.by_batch(rows):
            lists = self._part(batch).lists
            assert lists is not None, "the column has no lists"
            found[places] = lists.counts(local)
        return found

    def extents(self, rows: NDArray[np.int64], index: NDArray[np.int64]) -> ImageExtents:
        """Returns the positions of images.

        Args:
            rows: int64 (n,), the row of each image.
            index: int64 (n,), the place of each in the row's list; 0 for a column of images.

        Raises:
            IndexError: If a row number is out of range.
            DatasetClosed: After `close`.
        """
        n = len(rows)
        found = ImageExtents(
            np.empty(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64), {}
        )
        for batch, places, local in self._rows.by_batch(rows):
            try:
                part = self._part(batch)
            except ShardCorrupt:  # reading one of the images will raise it
                found.file[places] = NOWHERE
                continue
            offsets, missing = part.images.offsets, part.images.missing
            at = part.numbers(local, index[places])
            begin = offsets[at]
            found.file[places] = part.file
            found.offset[places] = part.begin + begin
            found.length[places] = offsets[at + 1] - begin
            if missing is not None:
                here = np.flatnonzero(missing[at])
                self._place_missing(found, part, places[here], at[here])
        return found

    def read(self, row: int, index: int = 0) -> bytes:
        """Returns the bytes of one image, of a list at the place `index`.

        Raises:
            ValueError: If it has neither bytes nor a path.
            DatasetClosed: After `close`.
            OSError: If its file cannot be read.
        """
        ((batch, _, local),) = self._rows.by_batch(np.array([row], np.int64))
        part = self._part(batch)
        at = int(part.numbers(local, np.array([index], np.int64))[0])
        if part.images.missing is None or not part.images.missing[at]:
            return part.images.bytes_of(at)
        path = None if part.paths is None else part.paths[at].as_py()
        if not path:
            raise ValueError("there is no image: the row has neither bytes nor a path")
        return self._named.read(path)

    @property
    def has_jpegs(self) -> bool:
        """Whether any of some sampled images is a JPEG."""
        if self._has_jpegs is None:
            rows = np.unique(np.linspace(0, len(self._rows) - 1, _LOOKED_AT, dtype=np.int64))
            self._has_jpegs = any(map(self._is_jpeg, rows.tolist()))
        return self._has_jpegs

    def _is_jpeg(self, row: int) -> bool:
        if self.lists and self.counts(np.array([row], np.int64))[0] < 1:
            return False
        extent = self.extents(np.array([row], np.int64), np.zeros(1, np.int64))
        return bool(extent.file[0] >= 0) and self.read(row)[:2] == _JPEG_BEGINS

    def close(self) -> None:
        """Releases copied images. Results of `extents` are invalid from here on."""
        with self._lock:
            self._closed = True
            self._parts.clear()
            self._files.clear()
            self._numbers.clear()
            self._end()

    def _place_missing(
        self, found: ImageExtents, part: _Part, places: NDArray[np.int64], at: NDArray[np.int64]
    ) -> None:
        """Sets the places of images without bytes, which have the numbers `at` in the part."""
        for place, number in zip(places.tolist(), at.tolist(), strict=True):
            path = None if part.paths is None else part.paths[number].as_py()
            with suppress(OSError, ValueError):  # `read` will raise it
                path = path and self._named.find(path)
                found.paths.update({place: path} if path else {})
            found.file[place] = OWN_FILE if place in found.paths else NOWHERE
            found.offset[place] = found.length[place] = 0

    def _part(self, batch: int) -> _Part:
        part = self._parts.get(batch)
        if part is None:
            with self._lock:
                if self._closed:  # the descriptors may already belong to other files
                    raise DatasetClosed("the dataset was closed: open it again")
                part = self._parts.get(batch)
                if part is None:
                    part = self._parts[batch] = self._described(batch)
        return part

    def _described(self, batch: int) -> _Part:
        array = bare(self._rows.columns(batch, [self._path[0]]).column(0))
        for name in self._path[1:]:
            array = array.flatten()[array.type.get_field_index(name)]
        where = f"{'.'.join(self._path)}, record batch {batch}"
        lists = encoded_lists(array, where) if self.lists else None
        images = encoded_images(array, where) if lists is None else lists.images
        values = array if lists is None else lists.values
        file, begin = self._home(images)
        return _Part(images, bytes_and_paths(values)[1], lists, file, begin)

    def _home(self, images: EncodedImages) -> tuple[int, int]:
        """Returns the number of the file that contains images, and the offset of their bytes."""
        begin, end = int(images.offsets[0]), int(images.offsets[-1])
        if begin == end:
            return NOWHERE, 0
        used = pa.py_buffer(images.data[begin:end])
        found = self._mapped.find(used)
        if found is None:
            return self._kept_in_memory(used), -begin
        path, offset = found
        return self._number(path), offset - begin

    def _kept_in_memory(self, content: pa.Buffer) -> int:
        descriptor = os.memfd_create("fastio images", os.MFD_CLOEXEC)
        self._memory.append(descriptor)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        return self._number(f"/proc/self/fd/{descriptor}")

    def _number(self, path: str) -> int:
        if path not in self._numbers:
            self._numbers[path] = len(self._files)
            self._files.append(path)
        return self._numbers[path]


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
