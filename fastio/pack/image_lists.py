"""Lists of images: from samples to cells, and from cells to columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fastio.errors import SchemaError
from fastio.pack.images import ImageCell
from fastio.packed.grouping import starts_of
from fastio.packed.image_lists import MOST_IMAGES
from fastio.packed.ipc import number_array, number_dtype
from fastio.packed.sample_errors import NOT_OF_SAMPLES
from fastio.schema import Image, Images, field_columns

ImageCells = tuple[ImageCell, ...]


class ListedImageError(ValueError):
    """An image of a list cannot be stored.

    Attributes:
        index: The place of the image in the list.
        cause: Why.
    """

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(f"image {index}: {str(cause) or type(cause).__name__}")
        self.index = index
        self.cause = cause


def encode_list(field: Images, value: Any, encode: Callable[[Image, Any], ImageCell]) -> ImageCells:
    """Returns the images of a list as they are stored.

    Args:
        field: The field.
        value: A list or tuple of images, or a uint8 array (n, H, W, C).
        encode: Returns one image as it is stored.

    Raises:
        SchemaError: It is something else, too long, or has a value that is no image.
        ListedImageError: An image cannot be read or stored.
    """
    if isinstance(value, ValueError):
        raise value  # of a list that is null
    is_list = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
    if not is_list:
        raise SchemaError(f"expected a list of images, got {type(value).__name__}")
    if len(value) > MOST_IMAGES:
        raise SchemaError(f"the list has {len(value):,} images, more than {MOST_IMAGES:,}")
    cells = []
    for index, each in enumerate(value):
        try:
            if each is None:
                raise ValueError("it is None")
            cells.append(encode(field.each, each))
        except SchemaError as error:
            raise SchemaError(f"image {index} of the list: {error}") from error
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:  # MemoryError and RecursionError are a sample's own too
            raise ListedImageError(index, error) from error
    return tuple(cells)


def list_bytes(cells: ImageCells) -> int:
    """Returns the bytes that a list takes in a shard, beside its offsets."""
    values = ImageCell._fields[1:-1]
    return sum(len(cell.data) + 8 + 4 * len(values) for cell in cells)


def list_arrays(name: str, field: Images, rows: Sequence[ImageCells]) -> list[pa.Array]:
    """Returns the Arrow columns of a field, in the order of `field_columns`."""
    cells = [cell for row in rows for cell in row]
    first = starts_of(list(map(len, rows)))
    ends = starts_of([len(cell.data) for cell in cells])
    (_, of_bytes), (_, of_lengths), *of_values = field_columns(name, field)
    data = pa.py_buffer(b"".join(cell.data for cell in cells))
    buffers = [None, pa.py_buffer(ends[first]), data]
    columns = [pa.Array.from_buffers(of_bytes, len(rows), buffers)]
    lists: list[tuple[pa.DataType, Any]] = [(of_lengths, np.diff(ends))]
    # Not strict, because the last part, the indexes of JPEGs, is not stored in lists.
    for (_, kind), part in zip(of_values, ImageCell._fields[1:], strict=False):
        lists.append((kind, [getattr(cell, part) for cell in cells]))
    for kind, each in lists:
        numbers = number_array(np.array(each, number_dtype(kind.value_type)))
        columns.append(pa.LargeListArray.from_arrays(number_array(first), numbers, type=kind))
    return columns
