"""Where the fields of rows lie, as the native engine needs to know it: images, columns, spans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio._native import FieldKind as FieldKind
from fastio.errors import ShardCorrupt
from fastio.schema import (
    CODEC_ENCODED,
    CODEC_JPEG,
    RECORD_COLUMN,
    Array,
    Tokens,
    row_bytes,
    row_shape,
)
from fastio.store import Stamp

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.shard import ShardReader

WHOLE_FILE = -1  # a length
LOOK_INTO_FILE = 0  # an orientation, height or width that only the file's header tells
AS_STORED = 1  # an orientation: not to be turned, whatever the header says
_JPEG_NAMES = (".jpg", ".jpeg")
# What a shard has of each image beside its bytes, as `ImageReads` has it.
OF_IMAGES: dict[str, Any] = {
    "codec": np.uint8,
    "orientation": np.uint8,
    "height": np.int32,
    "width": np.int32,
    "crc32c": np.uint32,
}

Ranges = list[tuple[int, int]]  # offset in the file, bytes
# int64 (rows + 1,), where each row's segments begin; int64 and int32, each segment's first token in
# its shard, and how many it has.
Segments = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]
Int64s = NDArray[np.int64]
Shapes = Int64s | list[tuple[int, ...]]  # (n, axes); a list where rows differ in axes


@dataclass(frozen=True)
class TableField:
    """A field of fixed width: bytes [offset, offset + nbytes) of each row of a column.

    Attributes:
        name: name of the field.
        shape: shape of a row in a batch.
        dtype: dtype in a batch.
        column: number of the column.
        offset: offset in bytes from the beginning of a row of the column.
        nbytes: stored size of a row.
        kind: how the bytes are converted; numbers of `item` bytes are widened to `dtype`.
        item: size of a stored number in bytes.
        fill: value where a row of segments has no token.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    column: int
    offset: int
    nbytes: int
    kind: FieldKind = FieldKind.BYTES
    item: int = 1
    fill: int = 0

    def native(self) -> tuple[int, int, int, int, int, int, int]:
        """Returns the arguments of `fastio._native.Table` for this field."""
        to = 1 if self.kind == FieldKind.BYTES else np.dtype(self.dtype).itemsize
        return (self.column, self.offset, self.nbytes, self.kind.value, self.item, to, self.fill)


@dataclass(frozen=True)
class ShardExtents:
    """Where the columns lie in one shard's file, and which of its tokens make up which row."""

    columns: Ranges
    segments: Segments | None = None


class Layout(Protocol):
    """Where a dataset's fields lie in its shards.

    Attributes:
        dataset: The dataset of the shards.
        fields: The fields in the order of the native table.
        strides: The distance in bytes between rows, for each column.
        first_row: int64 (n + 1,), the first row of each shard with rows, and the number of rows.
    """

    dataset: Dataset
    first_row: NDArray[np.int64]

    @property
    def fields(self) -> Sequence[TableField]: ...
    @property
    def strides(self) -> Sequence[int]: ...

    def shard(self, number: int) -> int:
        """Returns the shard of an index of `first_row`."""
        ...

    def extents(self, number: int, reader: ShardReader) -> ShardExtents:
        """Returns where the columns lie in the shard's file, or raises ShardCorrupt."""
        ...

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Returns the ranges of rows [first, last), local to a shard, in its file."""
        ...


class FixedWidth:
    """The layout of Scalar fields, and Array fields with a shape; see `layout.Layout`."""

    def __init__(self, dataset: Dataset, names: Sequence[str]) -> None:
        self.dataset = dataset
        kinds = dataset.schema.fields
        layout = dataset.schema.record_layout
        offsets: Mapping[str, int] = {} if layout is None else layout.offsets
        columns = {name: row_bytes(name, kinds[name]) for name in names if name not in offsets}
        if layout is not None and len(columns) < len(names):
            columns[RECORD_COLUMN] = layout.nbytes
        self._columns = list(columns)
        self.strides: Sequence[int] = list(columns.values())
        # Fields in records share one column, in which each has its offset.
        homes = {name: RECORD_COLUMN if name in offsets else name for name in names}
        self.fields: Sequence[TableField] = [
            TableField(
                name,
                *row_shape(kinds[name]),
                self._columns.index(homes[name]),
                offsets.get(name, 0),
                row_bytes(name, kinds[name]),
            )
            for name in names
        ]
        self.first_row = dataset.shard_bounds()

    def shard(self, number: int) -> int:
        """Returns the shard of an index of `first_row`."""
        return number

    def extents(self, number: int, reader: ShardReader) -> ShardExtents:
        """Returns where the columns lie in the shard's file."""
        return ShardExtents([reader.extent(column) for column in self._columns])

    def ranges(self, number: int, reader: ShardReader, first: int, last: int) -> Ranges:
        """Returns the ranges of rows [first, last) in a shard's file."""
        found = []
        for column, stride in zip(self._columns, self.strides, strict=True):
            offset = reader.extent(column)[0]
            found.append((offset + first * stride, (last - first) * stride))
        return found


# --- Rows that differ in size ---------------------------------------------------------------------


@dataclass(frozen=True)
class RaggedExtents:
    """Where rows of different sizes lie.

    Attributes:
        readers: The readers of the shards.
        reader: int32 (n,), the index in `readers` of each row.
        begin: int64 (n,), the offset of each row's first byte in its shard's file.
        shapes: The shape of each row.
    """

    readers: list[ShardReader]
    reader: NDArray[np.int32]
    begin: Int64s
    shapes: Shapes


class RaggedRows:
    """A field whose rows differ in size, in local shards. Thread-safe.

    Attributes:
        name, kind: The field: an Array with axes of variable length, or Tokens.
        dtype: The dtype of its numbers.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        kind = dataset.schema.fields[name]
        assert isinstance(kind, (Array, Tokens))
        self.name = name
        self.kind: Array | Tokens = kind
        self.dtype = np.dtype(kind.dtype)
        self._dataset = dataset

    def locate(self, rows: Int64s) -> RaggedExtents:
        """Returns where rows lie, int64 (n,) in any order."""
        groups = self._dataset.by_shard(rows)
        reader = np.empty(len(rows), np.int32)
        begin = np.empty(len(rows), np.int64)
        shapes: list[Any] = [None] * len(groups)
        readers = [self._dataset.shard(group.shard) for group in groups]
        for number, (_, at, local) in enumerate(groups):
            reader[at] = number
            begin[at], shapes[number] = self._in_shard(readers[number], local)
        together = _in_order([at for _, at, _ in groups], shapes, len(rows))
        return RaggedExtents(readers, reader, begin, together)

    def forget(self, rows: Int64s) -> None:
        """Opens the damaged shards of rows again on the next read."""
        self._dataset.shards.readers.forget(group.shard for group in self._dataset.by_shard(rows))

    def _in_shard(self, reader: ShardReader, local: Int64s) -> tuple[Int64s, Shapes]:
        """Returns the offsets of rows in a shard's file, and their shapes."""
        item = self.dtype.itemsize
        if isinstance(self.kind, Tokens):
            starts, _ = reader.tokens(self.name)
            first = reader.extent(self.name)[0]
            return first + starts[local] * item, (starts[local + 1] - starts[local])[:, None]
        offsets = reader.offsets(self.name)
        shapes = reader.shapes(self.name, local)
        if isinstance(shapes, list):
            numbers = np.array([math.prod(shape) for shape in shapes], np.int64)
        else:
            numbers = np.prod(shapes, axis=1, dtype=np.int64)
        wrong = numbers * item != offsets[local + 1] - offsets[local]
        if wrong.any():
            place = int(np.argmax(wrong))
            row, shape = int(local[place]), tuple(map(int, shapes[place]))
            raise ShardCorrupt(
                f"{reader.path}: row {row} of the field {self.name!r} has the shape {shape} "
                f"and {int(offsets[row + 1] - offsets[row])} bytes, which do not fit {self.dtype}; "
                "run `fastio verify` on the dataset"
            )
        return reader.extent(self.name)[0] + offsets[local], shapes


def _in_order(at: Sequence[Int64s], shapes: Sequence[Any], count: int) -> Shapes:
    """Returns the shapes of rows in groups as those of one batch."""
    axes = {part.shape[1] if isinstance(part, np.ndarray) else None for part in shapes}
    if len(axes) == 1 and None not in axes:
        out = np.empty((count, shapes[0].shape[1]), np.int64)
        for places, part in zip(at, shapes, strict=True):
            out[places] = part
        return out
    found: list[Any] = [None] * count
    for places, part in zip(at, shapes, strict=True):
        rows = part if isinstance(part, list) else [tuple(row) for row in part.tolist()]
        for place, shape in zip(places.tolist(), rows, strict=True):
            found[place] = shape
    return same_axes(found)


def same_axes(shapes: Sequence[tuple[int, ...]]) -> Shapes:
    """Returns shapes as an array if all have as many axes as the first, else as a list."""
    axes = len(shapes[0]) if len(shapes) else 1
    if any(len(shape) != axes for shape in shapes):
        return list(shapes)
    return np.array(shapes, np.int64).reshape(len(shapes), axes)


# --- Images ---------------------------------------------------------------------------------------


class IndexReads(NamedTuple):
    """Where the indexes of some rows' JPEGs lie (docs/format.md), one entry per row.

    Attributes:
        files: The files, mapped.
        file: int32 (n,), number of the file in `files`.
        offset: int64 (n,), position of the first byte in the file.
        length: int64 (n,), number of bytes; 0 if there is no index.
    """

    files: list[_native.Mapping]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass(frozen=True)
class ImageReads:
    """Where the images of some rows lie and how they are stored, one entry per row.

    Attributes:
        path: returns the path of a file, given its number in `file`.
        file: int32 (n,), number of the file.
        offset: int64 (n,), position of the first byte in the file.
        length: int64 (n,), number of bytes; WHOLE_FILE reads the file to its end.
        codec: uint8 (n,), storage format (`schema.CODEC_...`).
        orientation: uint8 (n,), EXIF orientation; LOOK_INTO_FILE takes the JPEG's own, AS_STORED
            does not turn the pixels.
        height, width: int32 (n,), size of the stored pixels; LOOK_INTO_FILE if unknown.
        crc32c: uint32 (n,), checksums of the bytes; None if there are none.
        codebook: codebook of the images of the block codec; None if there are none.
        same_files: whether a number stands for the same file in the reads of every batch, so that
            the file may stay open.
        memory: arrays of uint8 (n,) in which the images lie if they do not lie in files; `file` is
            the number of an array, and `offset` counts from its beginning. None: the images lie in
            files.
        planar: whether raw images in memory are (C, H, W), and not (H, W, C).
        pieces: int64 (n,), the edition (see `recoded.table`) of the piece of recoded images that
            each row is read from, -1 for rows that are read from their originals; None: all rows
            are read from their originals.
        index: where the indexes of the JPEGs lie; None if there are none.
    """

    path: Callable[[int], str]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    codec: NDArray[np.uint8]
    orientation: NDArray[np.uint8]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    crc32c: NDArray[np.uint32] | None = None
    codebook: _native.Codebook | None = None
    same_files: bool = True
    memory: Sequence[NDArray[np.uint8]] | None = None
    planar: bool = False
    pieces: NDArray[np.int64] | None = None
    index: IndexReads | None = None


def encoded_reads(
    path: Callable[[int], str],
    file: NDArray[Any],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    is_jpeg: NDArray[np.bool_],
    *,
    upright: bool = True,
    same_files: bool = True,
    memory: Sequence[NDArray[np.uint8]] | None = None,
) -> ImageReads:
    """Returns reads of image files, whose sizes and orientations only their own headers tell.

    Args:
        path, file, offset, length, same_files, memory: as in `ImageReads`.
        is_jpeg: bool (n,), whether the native decoder tries an image; others are for Pillow.
        upright: whether images are turned as their headers say.
    """
    n = len(file)
    return ImageReads(
        path,
        file.astype(np.int32),
        np.ascontiguousarray(offset),
        np.ascontiguousarray(length),
        np.where(is_jpeg, CODEC_JPEG, CODEC_ENCODED).astype(np.uint8),
        np.full(n, LOOK_INTO_FILE if upright else AS_STORED, np.uint8),
        np.full(n, LOOK_INTO_FILE, np.int32),
        np.full(n, LOOK_INTO_FILE, np.int32),
        same_files=same_files,
        memory=memory,
    )


def is_jpeg_name(path: str) -> bool:
    """Returns whether a file's name has the ending of a JPEG."""
    return path.lower().endswith(_JPEG_NAMES)


class Range(NamedTuple):
    """A range of an object in a store, which has values of consecutive rows.

    Attributes:
        name: The name of the object.
        offset, length: The first byte, and the number of bytes.
        file: The number of the object in `ImageReads.file`.
        field: The name of the field whose values it has; "" for all fields.
        expect: The version of the object. None if the bytes are verified in another way.
    """

    name: str
    offset: int
    length: int
    file: int
    field: str = ""
    expect: Stamp | None = None


def told_apart(ranges: Iterable[Range]) -> bytes:
    """Returns bytes that differ if the objects, their versions or the offsets in them differ."""
    parts = [(r.name, r.offset, r.length, r.field, r.expect and r.expect.key) for r in ranges]
    # File names may contain bytes that are not UTF-8.
    return repr(parts).encode("utf-8", "surrogateescape")


def ranges(dataset: Dataset, first: int, last: int) -> list[Range]:
    """Returns the ranges of the images of rows [first, last), by shard and then by field.

    This opens the shards. Each range covers a field's rows in order.
    """
    found = []
    for shard, begin, end in spans(dataset, first, last):
        reader, name = dataset.shard(shard), dataset.manifest.name(shard)
        for field in dataset.schema.pictured:
            offset, stop = reader.offsets(field)[[begin, end]].tolist()
            first_byte = reader.extent(field)[0] + offset
            found.append(Range(name, first_byte, stop - offset, shard, field))
    return found


def spans(dataset: Dataset, first: int, last: int) -> list[tuple[int, int, int]]:
    """Splits rows [first, last) by shard: returns (shard, local begin, local end)."""
    first_row, rows = dataset.manifest.first_row, dataset.manifest.shard_rows
    shard = int(np.searchsorted(first_row, first, side="right")) - 1
    found = []
    while first < last:
        begin = first - int(first_row[shard])
        end = min(int(rows[shard]), last - int(first_row[shard]))
        found.append((shard, begin, end))
        first += end - begin
        shard += 1
    return found
