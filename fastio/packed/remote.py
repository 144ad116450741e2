"""The base class of datasets whose rows are fetched or read in blocks, before they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastio.cache import CacheFolder, Source
from fastio.errors import StoreError
from fastio.packed.layout import Range, told_apart
from fastio.packed.rows import Rows
from fastio.store import Store

# Returns, given rows and the numbers of their objects (`ImageReads.file`), the path of a local file
# with each row's block and the offset in the object at which that file begins; None if the block is
# not on this machine.
Staged = Callable[[NDArray[np.int64], NDArray[np.int64]], "Sequence[tuple[str, int] | None]"]


class Remote(Rows):
    """The base class of datasets that may be in a store, from which rows are fetched in blocks.

    If `remote_part` is None, the dataset is local. The methods here are for datasets whose rows are
    not byte ranges of objects (row groups of tables), and for objects without checksums.

    Attributes:
        whole: Whether objects are fetched whole, because there are no images.
        separate: Whether each row is an object of its own. One that is gone or was replaced is then
            an error of its row, and not of the dataset.
    """

    whole: bool = False

    @property
    def store(self) -> Store:
        """The store that has the dataset's objects.

        Raises:
            ValueError: The dataset is local, or its rows are not byte ranges of objects.
        """
        raise ValueError(f"{self.path} is local, or its rows are not byte ranges of objects")

    @property
    def lineage(self) -> str:
        """16 hexadecimal digits that are the same for all versions of the dataset."""
        return self.fingerprint

    def contents(self, first: int, last: int) -> bytes:
        """Returns bytes that differ between versions if the contents of these rows differ."""
        return told_apart(self.ranges(first, last))

    def version(self, file: int) -> str:
        """Returns the name and version of an object, by its number in `Range.file`, as a text.

        It differs from that of any other object of the dataset's versions: many servers give all
        objects of one size and time the same version.
        """
        return ""

    @property
    def nbytes(self) -> int:
        """The size of all objects in bytes."""
        return 0

    @property
    def head_bytes_fetched(self) -> int:
        """The number of bytes that were fetched to find out where the rows lie."""
        return 0

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of the data that says where the rows lie, or None.

        Raises:
            CacheError: If the cache cannot be used.
        """
        return None

    def ranges(self, first: int, last: int) -> list[Range]:
        """Returns the ranges of objects that have the files of rows [first, last)."""
        return []

    def check_parts(self, first: int, last: int, parts: Sequence[Any]) -> str | None:
        """Returns what is wrong with the bytes of `ranges(first, last)`; None if nothing is.

        Without checksums, only the number of bytes of each range can be checked.

        Raises:
            StoreError: If an object has become shorter.
        """
        for part, expected in zip(parts, self.ranges(first, last), strict=True):
            if memoryview(part).nbytes != expected.length:
                end = expected.offset + expected.length
                raise StoreError(f"{self.store.url}: {expected.name} ends before byte {end:,}")
        return None

    def check_source(self) -> None:
        """Raises SourceChanged if other data is in place of the data that was opened.

        The default does nothing, for datasets whose reads check the version themselves.
        """

    def describes(self, rows: NDArray[np.int64]) -> bool:
        """Returns whether rows can be read without fetching more than the bytes of their images."""
        return True

    def read_through(self, staged: Staged) -> None:
        """Reads values from blocks that are on this machine, where images' blocks have them."""
