"""The images in a field of lists, as a dataset whose rows are single images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastio.errors import ImageError, SchemaError
from fastio.packed.image_lists import MOST_IMAGES, NO_IMAGE, image_name, rows_and_indexes
from fastio.packed.layout import ImageReads
from fastio.packed.rows import Rows
from fastio.packed.sample_errors import of_sample
from fastio.schema import CODEC_ENCODED, Images, Schema

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.remote import Remote

_OF_READS = ("file", "offset", "length", "orientation", "height", "width")


class ListedImages(Rows):
    """The images of a field of lists, by their numbers (see `image_lists`). Thread-safe.

    The number `NO_IMAGE` stands for no image: its place has no bytes, and the codec `encoded`,
    which native threads do not decode.

    Args:
        dataset: The dataset; it is not closed.
        field: A field of lists of images.
    """

    def __init__(self, dataset: Rows, field: str) -> None:
        kind = dataset.schema.fields[field]
        if not isinstance(kind, Images):
            raise SchemaError(f"{dataset.path}: field {field!r} is not a field of lists of images")
        self._dataset = dataset
        self._name = field
        self.path = dataset.path
        self.schema = Schema({field: kind.each}, "single")
        self.max_pixels = dataset.max_pixels
        self.upright = dataset.upright

    def __len__(self) -> int:
        return len(self._dataset) * MOST_IMAGES

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the dataset."""
        return self._dataset.fingerprint

    @property
    def packed(self) -> Dataset | None:
        """The packed dataset of the lists."""
        return self._dataset.packed

    @property
    def remote_part(self) -> Remote | None:
        """The same images in the part of the dataset whose blocks are staged, if there is one."""
        remote: Any = self._dataset.remote_part
        listed: Any = None if remote is None else ListedImages(remote, self._name)
        return listed  # type: ignore[no-any-return]

    def rows_of(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Rows`."""
        return rows_and_indexes(images)[0]

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`."""
        # NO_IMAGE is the padding of shorter lists, which belongs to no row.
        there = rows != NO_IMAGE
        reads = self._dataset.list_reads(field, *rows_and_indexes(rows[there]))
        return reads if there.all() else _among_others(reads, there)

    def read(self, field: str, row: int) -> bytes:
        """See `Rows`."""
        return self._dataset.read_listed(field, *_one(row))

    def image(
        self,
        field: str,
        row: int,
        *,
        at_least: int | None = None,
        data: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """See `Rows`."""
        with of_sample(self, row, ImageError):
            return self._dataset.listed_image(field, *_one(row), at_least=at_least, data=data)

    def sample_name(self, row: int) -> str:
        """See `Rows`."""
        sample, index = _one(row)
        return image_name(self._dataset.sample_name(sample), self._name, index)

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> Mapping[str, Any]:
        """Raises SchemaError: there are only images."""
        return self._not_images(fields)

    def close(self) -> None:
        """Does nothing."""


def _one(number: int) -> tuple[int, int]:
    rows, indexes = rows_and_indexes(np.array([number], np.int64))
    return int(rows[0]), int(indexes[0])


def _among_others(reads: ImageReads, there: NDArray[np.bool_]) -> ImageReads:
    """Returns reads in the places `there`, bool (n,); the other places have no image."""

    def spread(values: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        out = np.full(len(there), fill, values.dtype)
        out[there] = values
        return out

    columns: dict[str, Any] = {name: spread(getattr(reads, name)) for name in _OF_READS}
    crc32c = None if reads.crc32c is None else spread(reads.crc32c)
    return replace(
        reads, **columns, codec=spread(reads.codec, CODEC_ENCODED), crc32c=crc32c, index=None
    )
