"""Table files whose columns hold encoded images, as a dataset whose images are decoded natively.

A row group is read as a whole, and its column of images is one buffer in memory, in which the
native threads read each image. A loader reads row groups before its batches need them
(`fastio.stage`), and they are released when no batch needs them any more.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastio.packed.grouping import grouped, starts_of
from fastio.packed.layout import ImageReads, encoded_reads
from fastio.packed.remote import Remote
from fastio.sources.encoded_rows import EncodedRows
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.embedded import EncodedImages, EncodedLists
from fastio.sources.table.indexed import TableSamples, Values
from fastio.store import Transfers

_RECENT_BYTES = 256 << 20  # of row groups that are kept for reads of single rows
_LEAST_RECENT = 2


Encoded = EncodedImages | EncodedLists


class ReadGroup:
    """A row group in memory.

    Attributes:
        images: The encoded images of each image field, or its lists, in parts of consecutive rows.
        values: The other fields; None if they were not read.
    """

    def __init__(
        self, images: Mapping[str, Sequence[Encoded]], values: Mapping[str, Values] | None
    ) -> None:
        self.images = images
        self.values = values
        self._first = {
            name: starts_of(list(map(len, parts)))[:-1] for name, parts in images.items()
        }

    def part_of(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the part that has each of some rows, int64 (n,)."""
        return np.searchsorted(self._first[field], rows, side="right").astype(np.int64) - 1

    def first(self, field: str, part: int) -> int:
        """Returns the first row of a part."""
        return int(self._first[field][part])


class MediaTable(EncodedRows, TableSamples, Remote):
    """The rows of table files with columns of images or sounds, as dicts. Thread-safe.

    See `TableSamples`. Rows without images are read by row groups, as those of any table. Nothing
    of table files is cached: row groups are decoded, and not fetched as they are.

    Attributes:
        transfers: Counters of requests.
    """

    row_grouping: Literal["possible", "always"] = "possible"

    def __init__(
        self,
        make: Any,
        options: Any = None,
        filters: Any = None,
        memory: int | str | None = None,
        remote: bool = False,
    ) -> None:
        super().__init__(make, options, filters, memory, remote)
        self._held: weakref.WeakValueDictionary[int, ReadGroup] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[int, ReadGroup] = OrderedDict()
        self.transfers = Transfers()

    def row_groups(
        self, fields: Sequence[str] | None, memory: int, threads: int, keep_nulls: bool = False
    ) -> TableDataset | None:
        """Opens the same rows as row groups; None if some fields are images."""
        images = self.schema.pictured
        if images and (fields is None or not set(images).isdisjoint(fields)):
            return None
        return super().row_groups(fields, memory, threads, keep_nulls)

    @property
    def remote_part(self) -> MediaTable | None:
        """The dataset itself, whose row groups are read ahead, if it has images."""
        return self if self.schema.pictured else None

    @property
    def grouped(self) -> MediaTable | None:
        """See `Rows`."""
        return self.remote_part

    @property
    def nbytes(self) -> int:
        """The approximate size of all row groups in memory, in bytes."""
        dataset = self._dataset
        return len(dataset) * dataset.row_bytes + sum(g.varying_bytes for g in dataset.groups)

    def held(self, number: int, fields: Collection[str] | None = None) -> ReadGroup:
        """Returns a row group in memory. It stays there as long as the result is referenced.

        Args:
            number: The number of the row group.
            fields: The fields that are needed. If None, all.

        Raises:
            ShardCorrupt, StoreError: It cannot be read.
        """
        found = self._held.get(number)
        if found is None:
            group = self._dataset.groups[number]
            others = [n for n in self.schema.fields if n not in self.schema.pictured]
            wanted = others if fields is None else [name for name in others if name in fields]
            values = self._whole(group) if wanted else None
            found = self._held[number] = ReadGroup(self._dataset.images(group), values)
        return found

    def _counts(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `EncodedRows`."""
        counts = np.empty(len(rows), np.int64)
        for encoded, places, at in self._encoded(field, rows):
            assert isinstance(encoded, EncodedLists)
            counts[places] = encoded.counts(at)
        return counts

    def _encoded(
        self, field: str, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Encoded, NDArray[np.int64], NDArray[np.int64]]]:
        """Yields the parts that have rows, the places of the rows, and their numbers in the part.

        All row groups of the rows are read before the first part is yielded.
        """
        rows = self._in_range(rows)
        number = np.searchsorted(self._first, rows, side="right") - 1
        groups = [(self._at_hand(group), group, there) for group, there in grouped(number)]
        for read, group, there in groups:
            local = rows[there] - self._first[group]
            for part, inside in grouped(read.part_of(field, local)):
                at = local[inside] - read.first(field, part)
                yield read.images[field][part], there[inside], at

    def _reads(self, field: str, rows: NDArray[np.int64], index: NDArray[np.int64]) -> ImageReads:
        """See `EncodedRows`. The images are in memory."""
        memory: list[NDArray[np.uint8]] = []
        file = np.zeros(len(rows), np.int32)
        offset, length = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        is_jpeg = np.zeros(len(rows), np.bool_)
        for encoded, places, at in self._encoded(field, rows):
            images = encoded if isinstance(encoded, EncodedImages) else encoded.images
            if isinstance(encoded, EncodedLists):
                at = encoded.first[at] + index[places]
            file[places] = len(memory)
            offset[places] = images.offsets[at]
            length[places] = images.offsets[at + 1] - images.offsets[at]
            is_jpeg[places] = images.is_jpeg[at]
            memory.append(images.data)
        return encoded_reads(str, file, offset, length, is_jpeg, memory=memory)

    def _file(self, field: str, row: int, index: int) -> bytes:
        """See `EncodedRows`."""
        ((encoded, _, at),) = self._encoded(field, np.array([row], np.int64))
        if isinstance(encoded, EncodedLists):
            return encoded.images.bytes_of(int(encoded.first[at[0]]) + index)
        return encoded.bytes_of(int(at[0]))

    def row_key(self, row: int) -> str:
        """Returns the fingerprint of the files, and the row."""
        return f"{self.fingerprint} {row}"

    def sample_name(self, row: int) -> str:
        """Returns how messages name a row: its file, and its number there."""
        group = self._dataset.groups[int(np.searchsorted(self._first, row, side="right")) - 1]
        if self._filters is not None:
            return f"{group.origin.file}, matching row {row}"
        return f"{group.origin.file}, row {group.origin.first_row + row - group.first_row}"

    def close(self) -> None:
        """Releases row groups in memory and open files."""
        with self._lock:
            self._recent.clear()
        super().close()

    def __reduce__(self) -> Any:
        return MediaTable, super().__reduce__()[1]

    def _at_hand(self, number: int) -> ReadGroup:
        """Returns a row group that a loader holds, or that was read recently, or reads it."""
        found = self._held.get(number)
        if found is not None:
            return found
        # Only one row group at a time is read here. Threads that need the same one wait for it.
        with self._lock:
            found = self._held.get(number)
            if found is None:
                found = self.held(number, ())
                self._recent[number] = found
                most = _RECENT_BYTES // max(1, self.group_bytes)
                if len(self._recent) > max(_LEAST_RECENT, most):
                    self._recent.popitem(last=False)
            return found

    def _group(self, number: int) -> Mapping[str, Values]:
        held = self._held.get(number)
        return super()._group(number) if held is None or held.values is None else held.values
