"""Where images of packed datasets lie in their shards: single images and images in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.packed.grouping import starts_of
from fastio.packed.image_lists import image_name
from fastio.packed.layout import OF_IMAGES, ImageReads, IndexReads, spans
from fastio.schema import INDEX_COLUMN

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.shard import ShardReader

Int64s = NDArray[np.int64]


class ShardImages(NamedTuple):
    """The images of a field in a shard, as views of the mapping if possible.

    Attributes:
        at: The offset in the file of the bytes of the images, which follow each other.
        begin: int64 (images + 1,), the offset of each image in these bytes.
        columns: The values of each image by the names in `OF_IMAGES`, (images,).
        first: For lists of images: int64 (rows + 1,), the number of the first image of each row in
            the shard. None if each row has one image.
        jpeg_index: The offset in the file of the indexes of JPEGs (docs/format.md), and where each
            one begins there: int64 (images + 1,). None if there are none.
    """

    at: int
    begin: Int64s
    columns: dict[str, NDArray[Any]]
    first: Int64s | None = None
    jpeg_index: tuple[int, Int64s] | None = None


def images_of(reader: ShardReader, field: str, *, in_lists: bool = False) -> ShardImages:
    """Returns the images of a field, or those in a field of lists.

    Raises:
        ShardCorrupt: The columns of the field do not fit each other.
    """
    # The reader keeps the result. For a small batch, finding the columns would take longer than
    # reading its rows, and checking the lists takes a time that grows with the shard.
    found: ShardImages | None = reader.images.get(field)
    if found is None:
        found = _lists(reader, field) if in_lists else _single(reader, field)
        reader.images[field] = found
    return found


def _single(reader: ShardReader, field: str) -> ShardImages:
    columns = {name: reader.fixed(f"{field}.{name}") for name in OF_IMAGES}
    index, column = None, field + INDEX_COLUMN
    if reader.has(column):
        index = reader.extent(column)[0], reader.offsets(column)
    return ShardImages(reader.extent(field)[0], reader.offsets(field), columns, jpeg_index=index)


def _lists(reader: ShardReader, field: str) -> ShardImages:
    first, length = reader.tokens(f"{field}.length")
    columns = {}
    wrong = bool((length < 0).any())
    for name in OF_IMAGES:
        own, columns[name] = reader.tokens(f"{field}.{name}")
        wrong = wrong or not np.array_equal(own, first)
    begin = starts_of(length)
    if wrong or not np.array_equal(begin[first], reader.offsets(field)):
        raise ShardCorrupt(
            f"{reader.path} is damaged: the lengths of the lists of images {field!r} do not fit "
            "their bytes; find all damage with `fastio verify`, and pack the dataset again"
        )
    return ShardImages(reader.extent(field)[0], begin, columns, first)


def list_counts(dataset: Dataset, field: str, rows: Int64s) -> Int64s:
    """Returns the number of images in the lists of rows, int64 (n,)."""
    counts = np.empty(len(rows), np.int64)
    for shard, places, local in dataset.by_shard(rows):
        first = images_of(dataset.shard(shard), field, in_lists=True).first
        assert first is not None
        counts[places] = first[local + 1] - first[local]
    return counts


def shard_reads(
    dataset: Dataset, field: str, rows: Int64s, index: Int64s | None = None
) -> ImageReads:
    """Returns the reads of images. The number of a file is that of its shard.

    Args:
        dataset, field: The dataset, and a field of images or of lists of images.
        rows: int64 (n,), the row of each image.
        index: int64 (n,), the place of each image in its list; None for a field of images.

    Raises:
        IndexError: A list has no image with the index.
    """
    columns: dict[str, Any] = {name: np.empty(len(rows), kind) for name, kind in OF_IMAGES.items()}
    file, offset = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    length = np.empty_like(offset)
    indexes = IndexReads([], np.zeros_like(file), np.zeros_like(offset), np.zeros_like(offset))
    for shard, places, local in dataset.by_shard(rows):
        reader = dataset.shard(shard)
        images, number = images_of(reader, field, in_lists=index is not None), local
        if images.first is not None and index is not None:
            number = images.first[local] + index[places]
            if (number >= images.first[local + 1]).any() or (index[places] < 0).any():
                raise IndexError(f"{dataset.path}: an index is not in its list of {field!r}")
        begin = images.begin[number]
        file[places] = shard
        offset[places] = images.at + begin
        length[places] = images.begin[number + 1] - begin
        for name, values in columns.items():
            values[places] = images.columns[name][number]
        if images.jpeg_index is not None:
            at, begins = images.jpeg_index
            indexes.file[places] = len(indexes.files)
            indexes.offset[places] = at + begins[number]
            indexes.length[places] = begins[number + 1] - begins[number]
            indexes.files.append(reader.mapping)
    return ImageReads(
        dataset.shard_path,
        file,
        offset,
        length,
        **columns,
        codebook=dataset.codebook,
        index=indexes if indexes.files else None,
    )


def check_rows(dataset: Dataset, first: int, last: int, parts: Sequence[Any]) -> str | None:
    """Compares images with their checksums, given the bytes of `ranges(first, last)`.

    Returns:
        A description of the first problem, which names the image; None if all bytes are right.
    """
    supply = iter(parts)
    for shard, begin, end in spans(dataset, first, last):
        reader = dataset.shard(shard)
        for field in dataset.schema.pictured:
            images = images_of(reader, field, in_lists=field in dataset.schema.list_fields)
            of_rows = [begin, end] if images.first is None else images.first[[begin, end]].tolist()
            starts = images.begin[of_rows[0] : of_rows[1] + 1]
            expected = np.ascontiguousarray(images.columns["crc32c"][slice(*of_rows)])
            data = np.frombuffer(next(supply), np.uint8)
            bad = _native.crc32c_mismatch(data, starts - starts[0], expected)
            if bad >= 0:
                return f"{_name(reader, field, images, of_rows[0] + bad)}: wrong CRC-32C"
    return None


def _name(reader: ShardReader, field: str, images: ShardImages, number: int) -> str:
    """Returns how messages name an image of a shard."""
    if images.first is None:
        return f"{reader.path} row {number}"
    row = int(np.searchsorted(images.first, number, side="right")) - 1
    return image_name(f"{reader.path} row {row}", field, number - int(images.first[row]))
