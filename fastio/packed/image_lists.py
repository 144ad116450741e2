"""Lists of images in rows: the numbers of their images, and how messages name them.

The image with index i in the list of row r has the number r * 2**20 + i, which does not depend on
the lengths of the lists of other rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
