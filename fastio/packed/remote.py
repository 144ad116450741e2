"""What is asked of datasets whose rows are fetched, or read, as blocks before they are needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastio.cache import Cache, CacheFolder, Source
from fastio.packed.layout import Range
from fastio.schema import Schema
from fastio.store import Store, Transfers

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset

# Returns, given rows and the numbers of their objects (`ImageReads.file`), the path of a local file
# with each row's block and the offset in the object at which that file begins; None if the block is
# not on this machine.
Staged = Callable[[NDArray[np.int64], NDArray[np.int64]], "Sequence[tuple[str, int] | None]"]


class Remote(Protocol):
    """A dataset in a store, whose rows are fetched as blocks before they are read.

    Attributes:
        path, schema: The URL, for messages, and the fields of the samples.
        cache: The cache for what is fetched; None keeps it in memory while it is needed.
        partitions: Number of partitions, each of which one node reads; None for one per node.
        whole: Whether objects are fetched whole, because there are no images.
        separate: Whether each row is an object of its own. One that is gone or was replaced is then
            an error of its row, and not of the dataset.
        packed: The dataset itself if it is a packed one; None for others.
        grouped: The dataset itself if its blocks are row groups; None for others.
    """

    path: str
    schema: Schema
    cache: Cache | None
    partitions: int | None
    whole: bool
    separate: bool

    @property
    def grouped(self) -> ByRowGroups | None: ...

    def __len__(self) -> int: ...
    @property
    def store(self) -> Store:
        """Returns the store of its objects."""

    @property
    def packed(self) -> Dataset | None: ...

    @property
    def fingerprint(self) -> str:
        """Returns 16 hexadecimal digits that identify the contents."""

    @property
    def lineage(self) -> str:
        """Returns 16 hexadecimal digits that are the same for all versions of the dataset."""

    def contents(self, first: int, last: int) -> bytes:
        """Returns bytes that differ between versions if the contents of these rows differ."""

    def version(self, file: int) -> str:
        """Returns the name and version of an object, by its number in `Range.file`, as a text.

        It differs from that of any other object of the dataset's versions: many servers give all
        objects of one size and time the same version.
        """

    @property
    def nbytes(self) -> int:
        """Returns the size of all objects in bytes."""

    @property
    def head_bytes_fetched(self) -> int:
        """Returns the number of bytes that were fetched to know where the rows lie."""

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of what tells where the rows lie, or None."""

    def image(
        self, field: str, row: int, *, data: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Returns an upright image; `data` has its stored bytes if they were read already."""

    def ranges(self, first: int, last: int) -> list[Range]:
        """Returns the ranges of objects that have the images of rows [first, last)."""

    def check_parts(self, first: int, last: int, parts: Sequence[Any]) -> str | None:
        """Returns what is wrong with the bytes of `ranges(first, last)`; None if nothing is.

        Raises:
            StoreError: If an object has become shorter.
        """

    def check_source(self) -> None:
        """Raises SourceChanged if other data is in place of the data that was opened."""

    def describes(self, rows: NDArray[np.int64]) -> bool:
        """Returns whether all that is needed to read rows is known, except bytes of images."""

    def read_through(self, staged: Staged) -> None:
        """Reads values from blocks that are on this machine, where images' blocks have them."""


class ByRowGroups(Remote, Protocol):
    """Table files with images, here or in a store, of which row groups are read as wholes.

    Attributes:
        memory: As of `Rows`.
        transfers: Counters of requests.
    """

    memory: int | str | None
    transfers: Transfers

    @property
    def group_bounds(self) -> NDArray[np.int64]:
        """The first row of each row group, and the number of rows: int64 (groups + 1,)."""

    @property
    def group_bytes(self) -> int:
        """The approximate size in memory of the largest row group, in bytes."""

    def held(self, number: int, fields: Collection[str] | None = None) -> object:
        """Reads a row group, which stays in memory as long as the result is referenced."""
