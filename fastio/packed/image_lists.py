"""Lists of images in rows: the numbers of their images, and where those of a shard lie.

The image with index i in the list of row r has the number r * 2**20 + i, which does not depend on
the lengths of the lists of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.packed.layout import OF_IMAGES, ImageReads, spans
from fastio.schema import Images

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.shard import ShardReader

_INDEX_BITS = 20
MOST_IMAGES = 1 << _INDEX_BITS  # the most images of a list
NULL_LIST = -1  # in place of the number of its images
NO_IMAGE = -1  # a number that stands for no image

Int64s = NDArray[np.int64]


def image_name(sample: str, field: str, index: int) -> str:
    """Returns how messages name an image in a list, given the name of its sample."""
    return f"{sample}, image {index} of {field!r}"


def null_list(field: str) -> str:
    """Returns the message of a sample whose list of images is null."""
    return f"the list {field!r} is null"


def image_numbers(rows: Int64s, index: Int64s) -> Int64s:
    """Returns the numbers of images, given the row of each and its index in the row's list."""
    return (rows << _INDEX_BITS) | index


def rows_and_indexes(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the row of each image, and its index in the row's list: int64 (n,) both."""
    return numbers >> _INDEX_BITS, numbers & (MOST_IMAGES - 1)


# --- Shards ---------------------------------------------------------------------------------------


class ShardLists(NamedTuple):
    """The lists of images of a field in a shard, as views of the map if possible.

    Attributes:
        at: The offset in the file of the bytes of the images, which follow each other.
        first: int64 (rows + 1,), the number of the first image of each row in the shard.
        begin: int64 (images + 1,), the offset of each image in these bytes.
        columns: The values of each image by the names in `OF_IMAGES`, (images,).
    """

    at: int
    first: Int64s
    begin: Int64s
    columns: dict[str, NDArray[Any]]


def lists_of(reader: ShardReader, field: str) -> ShardLists:
    """Returns the lists of a field. The reader keeps them, because checking them takes time.

    Raises:
        ShardCorrupt: The columns of the field do not fit each other.
    """
    found: ShardLists | None = reader.lists.get(field)
    if found is not None:
        return found
    first, length = reader.tokens(f"{field}.length")
    columns = {}
    wrong = bool((length < 0).any())
    for name in OF_IMAGES:
        own, columns[name] = reader.tokens(f"{field}.{name}")
        wrong = wrong or not np.array_equal(own, first)
    begin = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=begin[1:])
    if wrong or not np.array_equal(begin[first], reader.offsets(field)):
        raise ShardCorrupt(
            f"{reader.path} is damaged: the lengths of the lists of images {field!r} do not fit "
            "their bytes; find all damage with `fastio verify`, and pack the dataset again"
        )
    made = reader.lists[field] = ShardLists(reader.extent(field)[0], first, begin, columns)
    return made


def list_counts(dataset: Dataset, field: str, rows: Int64s) -> Int64s:
    """Returns the number of images in the lists of rows of a packed dataset, int64 (n,)."""
    counts = np.empty(len(rows), np.int64)
    for shard, places, local in dataset.by_shard(rows):
        first = lists_of(dataset.shard(shard), field).first
        counts[places] = first[local + 1] - first[local]
    return counts


def list_reads(dataset: Dataset, field: str, rows: Int64s, index: Int64s) -> ImageReads:
    """Returns the reads of images in lists of a packed dataset; a file's number is its shard's.

    Raises:
        IndexError: A list has no image with the index.
    """
    columns: dict[str, Any] = {name: np.empty(len(rows), kind) for name, kind in OF_IMAGES.items()}
    file, offset = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    length = np.empty_like(offset)
    for shard, places, local in dataset.by_shard(rows):
        lists = lists_of(dataset.shard(shard), field)
        number = lists.first[local] + index[places]
        if (number >= lists.first[local + 1]).any() or (index[places] < 0).any():
            raise IndexError(f"{dataset.path}: a list of {field!r} has no image of that number")
        begin = lists.begin[number]
        file[places] = shard
        offset[places] = lists.at + begin
        length[places] = lists.begin[number + 1] - begin
        for name, values in columns.items():
            values[places] = lists.columns[name][number]
    return ImageReads(
        dataset.shard_path, file, offset, length, **columns, codebook=dataset.codebook
    )


def check_rows(dataset: Dataset, first: int, last: int, parts: Sequence[Any]) -> str | None:
    """Compares images with their checksums, given the bytes of `ranges(first, last)`.

    Returns:
        A description of the first problem, which names the row; None if all bytes are right.
    """
    supply = iter(parts)
    for shard, begin, end in spans(dataset, first, last):
        reader = dataset.shard(shard)
        for field in dataset.schema.pictured:
            part = next(supply)
            if isinstance(dataset.schema.fields[field], Images):
                problem = _check_lists(reader, field, begin, end, part)
                if problem is not None:
                    return problem
                continue
            data = np.frombuffer(part, np.uint8)
            starts = reader.offsets(field)[begin : end + 1]
            starts = starts - starts[0]
            expected = reader.fixed(f"{field}.crc32c")[begin:end]
            bad = _native.crc32c_mismatch(data, starts, expected)
            if bad >= 0:
                return f"{reader.path} row {begin + bad}: wrong CRC-32C"
    return None


def _check_lists(reader: ShardReader, field: str, begin: int, end: int, part: Any) -> str | None:
    """Compares the images of rows [begin, end) of a shard, whose bytes are given, with their CRCs.

    Returns:
        A description of the first problem, which names the image; None if all bytes are right.
    """
    lists = lists_of(reader, field)
    first, last = int(lists.first[begin]), int(lists.first[end])
    starts = lists.begin[first : last + 1]
    expected = np.ascontiguousarray(lists.columns["crc32c"][first:last])
    bad = _native.crc32c_mismatch(np.frombuffer(part, np.uint8), starts - starts[0], expected)
    if bad < 0:
        return None
    row = int(np.searchsorted(lists.first, first + bad, side="right")) - 1
    name = image_name(f"{reader.path} row {row}", field, first + bad - int(lists.first[row]))
    return f"{name}: wrong CRC-32C"
