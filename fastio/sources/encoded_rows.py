"""What datasets whose images are encoded files have in common: images, and lists of images."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from fastio.packed.layout import ImageReads
from fastio.packed.rows import Rows
from fastio.schema import Image, Images


class EncodedRows(Rows):
    """Rows whose fields of images, or of lists of images, are files. See `Rows` for its methods."""

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`."""
        if not isinstance(self._field(field), Image):
            return super().image_reads(field, rows)
        return self._reads(field, rows, np.zeros(len(rows), np.int64))

    def list_reads(
        self, field: str, rows: NDArray[np.int64], index: NDArray[np.int64]
    ) -> ImageReads:
        """See `Rows`."""
        if not isinstance(self._field(field), Images):
            return super().list_reads(field, rows, index)
        return self._reads(field, rows, index)

    def image_counts(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Rows`."""
        if not isinstance(self._field(field), Images):
            return super().image_counts(field, rows)
        return self._counts(field, rows)

    def read(self, field: str, row: int) -> bytes:
        """Returns the bytes of one image; ValueError if the row has none."""
        if not isinstance(self._field(field), Image):
            return super().read(field, row)
        return self._file(field, row, 0)

    def read_listed(self, field: str, row: int, index: int) -> bytes:
        """Returns the bytes of one image of a list; ValueError if it is null."""
        if not isinstance(self._field(field), Images):
            return super().read_listed(field, row, index)
        # The images of all lists are stored one after the other, so a wrong index would return an
        # image of another row.
        if not 0 <= index < int(self._counts(field, np.array([row], np.int64))[0]):
            raise IndexError(f"{self.sample_name(row)}: {field!r} has no image {index}")
        return self._file(field, row, index)

    @abstractmethod
    def _reads(self, field: str, rows: NDArray[np.int64], index: NDArray[np.int64]) -> ImageReads:
        """Returns where images lie; `index` is the place of each in the row's list, or 0."""

    @abstractmethod
    def _counts(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of the lists of rows; NULL_LIST where a list is null."""

    @abstractmethod
    def _file(self, field: str, row: int, index: int) -> bytes:
        """Returns the bytes of one image; `index` is its place in the row's list, or 0."""
