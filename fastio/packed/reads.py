"""Where the images of rows lie: of any rows one by one, of consecutive rows as ranges of shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.schema import CODEC_ENCODED, CODEC_JPEG

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.shard import ShardReader

WHOLE_FILE = -1  # a length
LOOK_INTO_FILE = 0  # an orientation, height or width that only the file's header tells
AS_STORED = 1  # an orientation: not to be turned, whatever the header says
_JPEG_NAMES = (".jpg", ".jpeg")


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


def shard_reads(dataset: Dataset, field: str, rows: NDArray[np.int64]) -> ImageReads:
    """Returns the reads of an image field of a packed dataset; a file's number is its shard's."""
    n = len(rows)
    reads = ImageReads(
        dataset.shard_path,
        np.empty(n, np.int32),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.uint8),
        np.empty(n, np.uint8),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.uint32),
        dataset.codebook,
    )
    for shard, places, local in dataset.by_shard(rows):
        reads.file[places] = shard
        _fill(reads, places, dataset.shard(shard), field, local)
    return reads


def _fill(
    reads: ImageReads,
    places: NDArray[np.int64],
    reader: ShardReader,
    field: str,
    local: NDArray[np.int64],
) -> None:
    offsets = reader.offsets(field)
    begin = offsets[local]
    reads.offset[places] = begin + reader.extent(field)[0]
    reads.length[places] = offsets[local + 1] - begin
    for name in ("codec", "orientation", "height", "width", "crc32c"):
        getattr(reads, name)[places] = reader.fixed(f"{field}.{name}")[local]


def encoded_reads(
    path: Callable[[int], str],
    file: NDArray[Any],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    is_jpeg: NDArray[np.bool_],
    *,
    upright: bool = True,
    same_files: bool = True,
) -> ImageReads:
    """Returns reads of image files, whose sizes and orientations only their own headers tell.

    Args:
        path, file, offset, length, same_files: as in `ImageReads`.
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
    )


def is_jpeg_name(path: str) -> bool:
    """Returns whether a file's name has the ending of a JPEG."""
    return path.lower().endswith(_JPEG_NAMES)


# --- Consecutive rows -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Extent:
    """A range of one shard's bytes."""

    shard: int
    offset: int
    length: int


def extents(dataset: Dataset, first: int, last: int) -> list[Extent]:
    """Returns the ranges of the images of rows [first, last), by shard and then by field.

    This opens the shards. Each range covers a field's rows in order.
    """
    found = []
    for shard, begin, end in spans(dataset, first, last):
        reader = dataset.shard(shard)
        for field in dataset.schema.image_fields:
            offsets = reader.offsets(field)
            offset, stop = int(offsets[begin]), int(offsets[end])
            found.append(Extent(shard, reader.extent(field)[0] + offset, stop - offset))
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


def check_rows(dataset: Dataset, first: int, last: int, parts: Sequence[Any]) -> str | None:
    """Compares images with their checksums, given the bytes of `extents(first, last)`.

    Returns:
        A description of the first problem, which names the row; None if all bytes are right.
    """
    supply = iter(parts)
    for shard, begin, end in spans(dataset, first, last):
        reader = dataset.shard(shard)
        for field in dataset.schema.image_fields:
            data = np.frombuffer(next(supply), np.uint8)
            starts = reader.offsets(field)[begin : end + 1]
            starts = starts - starts[0]
            expected = reader.fixed(f"{field}.crc32c")[begin:end]
            bad = _native.crc32c_mismatch(data, starts, expected)
            if bad >= 0:
                return f"{reader.path} row {begin + bad}: wrong CRC-32C"
    return None
