"""Rows to byte ranges: which bytes of which local file the engine has to read for a batch.

Packed datasets, image folders and tars differ here and nowhere after. An `ImageSource` answers for
one image field; its files are numbered by a `fastio._native.FileSet`, which the engine's threads
read from. Safe to use from several threads.
"""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.dataset import Dataset
from fastio.dataset.remote import RemoteDataset
from fastio.errors import ImageError
from fastio.formats import AnyDataset, FolderDataset, Remote, RemoteTars, TarDataset
from fastio.schema import CODEC_ENCODED, CODEC_JPEG, RECORD_COLUMN, Field, is_fixed_width, row_shape
from fastio.shard import ShardReader
from fastio.staging import Stager

Rows = npt.NDArray[np.int64]
WHOLE_FILE = -1
LOOK_INTO_FILE = 0  # an orientation, height or width that only the file's header tells
_PLAIN = 0, 1, 1, 0  # kind, and what is for numbers that are widened: native/core/table.h
_MOST_MAPPED = 32768  # shards: a process may have 65530 maps on Linux, as it comes
AS_STORED = 1  # an orientation: not to be turned, whatever the header says


@dataclass(frozen=True)
class ImageReads:
    """The reads of a batch, one entry a row; what `fastio._native.Engine.submit` takes.

    Attributes:
        files: what the numbers in `file` stand for.
        file: int32, number of the file.
        offset, length: int64, the bytes; a length of -1 is the whole file.
        codec: uint8, how they are stored (`schema.CODEC_...`).
        orientation: uint8, EXIF's, or 0: look into the JPEG. 1 leaves the pixels as stored.
        height, width: int32, of the stored pixels, 0 where unknown.
        crc32c: uint32, of the bytes, or None where they have no checksum.
        codebook: for rows of the block codec; None where there are none.
    """

    files: _native.FileSet
    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    codec: npt.NDArray[np.uint8]
    orientation: npt.NDArray[np.uint8]
    height: npt.NDArray[np.int32]
    width: npt.NDArray[np.int32]
    crc32c: npt.NDArray[np.uint32] | None
    codebook: _native.Codebook | None


class Columns:
    """The fixed-width fields of a packed dataset, for the engine's threads to gather rows of.

    Safe to use from several threads.

    Args:
        dataset: packed, local or remote.
        fields: names of Scalar fields and of Array fields with a shape.
        resident: copy the shards to memory of their own, by huge pages; see native/core/table.h.

    Attributes:
        fields: in the order of the native table's.
    """

    def __init__(self, dataset: Dataset, fields: Sequence[str], resident: bool = False) -> None:
        self._dataset = dataset
        self.fields = tuple(fields)
        kinds = dataset.schema.fields
        layout = dataset.schema.record_layout
        offsets: Mapping[str, int] = {} if layout is None else layout.offsets
        columns = {name: _row_bytes(kinds[name]) for name in fields if name not in offsets}
        if layout is not None and len(columns) < len(fields):
            columns[RECORD_COLUMN] = layout.nbytes
        self._columns = list(columns)
        homes = {name: RECORD_COLUMN if name in offsets else name for name in fields}
        places = [
            (
                self._columns.index(homes[name]),
                offsets.get(name, 0),
                _row_bytes(kinds[name]),
                *_PLAIN,
            )
            for name in fields
        ]
        first_row = np.append(dataset.manifest.first_row, dataset.manifest.rows).astype(np.int64)
        self.table = _native.Table(first_row, list(columns.values()), places)
        if resident:
            self.table.make_resident()
        self._set: dict[int, None] = {}  # shards that the table has, oldest first
        self._lock = threading.Lock()

    def gather(
        self, engine: _native.Engine, rows: Rows, out: Sequence[npt.NDArray[Any] | None]
    ) -> _native.Slot:
        """Has threads gather rows, whose shards are opened first.

        Args:
            engine: whose threads.
            rows: global rows, int64 (n,).
            out: of each of `fields`, an array with room for n rows; None: not wanted.

        Raises:
            IndexError: a row is out of range.
            SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
        """
        while True:
            missing = self.table.missing(rows).tolist()
            # Outside of the lock: a store may have to be waited for.
            readers = {shard: self._dataset.shard(shard) for shard in missing}
            with self._lock:
                for shard, reader in readers.items():
                    extents = [reader.extent(column) for column in self._columns]
                    self.table.set(shard, reader.mapping, extents)
                    self._set[shard] = None
                if not readers or not len(self.table.missing(rows)):
                    slot = engine.gather(self.table, rows, list(out))  # has what the table has now
                    if readers:
                        self._let_go()
                    return slot

    def _let_go(self) -> None:
        """Of shards that the dataset keeps no more: what was fetched is not to fill the memory."""
        remote = isinstance(self._dataset, RemoteDataset)
        for shard in list(self._set):
            if (remote and not self._dataset.is_kept(shard)) or len(self._set) > _MOST_MAPPED:
                del self._set[shard]
                self.table.unset(shard)

    def renew(self, rows: Rows) -> bool:
        """Has shards of rows that turned out to be damaged opened anew; False: it is no use."""
        shards = [group.shard for group in self._dataset.by_shard(rows)]
        with self._lock:
            for shard in shards:
                self._set.pop(shard, None)
                self.table.unset(shard)
        if isinstance(self._dataset, RemoteDataset):
            return self._dataset.renew(rows)
        self._dataset.forget(shards)
        return False

    def close(self) -> None:
        """Ends the copying of resident shards."""
        self.table.close()


def _row_bytes(kind: Field) -> int:
    shape, dtype = row_shape(kind)
    return math.prod(shape) * np.dtype(dtype).itemsize


class ImageSource(Protocol):
    """One image field of a dataset."""

    def reads(self, rows: Rows) -> ImageReads:
        """The reads of global rows, int64 (n,)."""
        ...

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """One image, uint8 (H, W, C), by Pillow: for what the engine cannot decode.

        It is turned as the orientation in `reads` says.

        Raises:
            FastioError, OSError: it cannot be read or decoded.
        """
        ...

    def close(self) -> None:
        """Closes the files."""
        ...


class PackedImages:
    """An image field of a packed dataset: ranges of shards that stay open."""

    def __init__(self, dataset: Dataset, field: str) -> None:
        self._dataset = dataset
        self._field = field
        self._files = _native.FileSet(keep_open=True, max_open=_most_open())
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()

    def reads(self, rows: Rows) -> ImageReads:
        n = len(rows)
        file, offset, length = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64)
        reads = _unfilled(self._files, file, offset, length, self._dataset.codebook)
        for shard, places, local in self._dataset.by_shard(rows):
            self._fill(reads, places, shard, local)
        return reads

    def _fill(self, reads: ImageReads, places: Rows, shard: int, local: Rows) -> None:
        reader = self._dataset.shard(shard)
        offsets = reader.offsets(self._field)
        begin = offsets[local]
        reads.file[places] = self._number(shard)
        reads.offset[places] = begin + reader.data_offset(self._field)
        reads.length[places] = offsets[local + 1] - begin
        _fill_columns(reads, places, reader, self._field, local)

    def _number(self, shard: int) -> int:
        number = self._numbers.get(shard)
        if number is None:
            with self._lock:
                number = self._numbers.get(shard)
                if number is None:
                    number = self._files.add([self._dataset.shard_path(shard)])
                    self._numbers[shard] = number
        return number

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._dataset.image(self._field, row)

    def close(self) -> None:
        self._files.close()


def _most_open() -> int:
    """How many shards' descriptors to keep: a quarter of what the process may have, up to 4096.

    A shuffled epoch opens and closes a shard for each read once there are more shards than that,
    which costs a round trip on network file systems.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else min(soft // 4, 4096)


class FolderImages:
    """The images of a folder: whole files, opened when they are read."""

    def __init__(self, dataset: FolderDataset) -> None:
        self._dataset = dataset

    def reads(self, rows: Rows) -> ImageReads:
        # Numbered anew for every batch: a table of all paths would cost memory and start-up time.
        paths = [self._dataset.paths[row] for row in rows.tolist()]
        files = _native.FileSet(keep_open=False)
        files.add(paths)
        n = len(rows)
        codec = [
            CODEC_JPEG if path.lower().endswith((".jpg", ".jpeg")) else CODEC_ENCODED
            for path in paths
        ]
        return ImageReads(
            files,
            np.arange(n, dtype=np.int32),
            np.zeros(n, np.int64),
            np.full(n, WHOLE_FILE, np.int64),
            np.array(codec, np.uint8),
            np.full(n, LOOK_INTO_FILE if self._dataset.upright else AS_STORED, np.uint8),
            np.full(n, LOOK_INTO_FILE, np.int32),
            np.full(n, LOOK_INTO_FILE, np.int32),
            None,
            None,
        )

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        pixels: npt.NDArray[np.uint8] = self._dataset[row][0]
        return pixels

    def close(self) -> None:
        """Nothing stays open."""


class TarImages:
    """An image field of tars: ranges of tars that stay open."""

    def __init__(self, dataset: TarDataset, field: str) -> None:
        self._dataset = dataset
        self._field = field
        self._files = _native.FileSet(keep_open=True, max_open=_most_open())
        self._files.add(list(dataset.tars))

    def reads(self, rows: Rows) -> ImageReads:
        tar, offset, length, is_jpeg = self._dataset.extents(self._field, rows)
        return _described_by_files(self._files, tar, offset, length, is_jpeg)

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._dataset.image(self._field, row)

    def close(self) -> None:
        self._files.close()


class StagedImages:
    """An image field of a remote dataset: ranges of blocks that were brought here."""

    def __init__(self, dataset: RemoteDataset, field: str, stager: Stager) -> None:
        self._dataset = dataset
        self._field = field
        self._stager = stager

    def reads(self, rows: Rows) -> ImageReads:
        files, file, offset, length = _staged_places(self._stager, self._field, rows)
        reads = _unfilled(files, file, offset, length, self._dataset.codebook)
        for shard, places, local in self._dataset.by_shard(rows):
            _fill_columns(reads, places, self._dataset.shard(shard), self._field, local)
        return reads

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        with suppress(OSError, KeyError, ImageError):  # evicted or damaged meanwhile
            return self._dataset.image(self._field, row, data=self._staged(row))
        return self._dataset.image(self._field, row)

    def _staged(self, row: int) -> npt.NDArray[np.uint8]:
        """A row's bytes from its block, which its batch holds."""
        block, offset, length = self._stager.blocks.places(self._field, np.array([row], np.int64))
        path = self._stager.path(int(block[0]))
        return np.fromfile(path, np.uint8, int(length[0]), offset=int(offset[0]))

    def close(self) -> None:
        """Nothing stays open."""


class StagedTarImages:
    """An image field of remote tars: ranges of blocks that were brought here."""

    def __init__(self, dataset: RemoteTars, field: str, stager: Stager) -> None:
        self._dataset = dataset
        self._field = field
        self._stager = stager

    def reads(self, rows: Rows) -> ImageReads:
        files, file, offset, length = _staged_places(self._stager, self._field, rows)
        is_jpeg = self._dataset.extents(self._field, rows).is_jpeg
        return _described_by_files(files, file, offset, length, is_jpeg)

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._dataset.image(self._field, row)

    def close(self) -> None:
        """Nothing stays open."""


def _staged_places(
    stager: Stager, field: str, rows: Rows
) -> tuple[_native.FileSet, npt.NDArray[np.int32], Rows, Rows]:
    """The files of the blocks of rows, and the number, offset and length of each row's in them."""
    block, offset, length = stager.blocks.places(field, rows)
    numbers, file = np.unique(block, return_inverse=True)
    # Numbered anew for every batch: blocks come and go, and a kept descriptor would keep the bytes
    # of one that is gone.
    files = _native.FileSet(keep_open=True, max_open=_most_open())
    files.add([stager.path(number) for number in numbers.tolist()])
    return files, file.astype(np.int32), offset, length


def _described_by_files(
    files: _native.FileSet,
    file: npt.NDArray[Any],
    offset: Rows,
    length: Rows,
    is_jpeg: npt.NDArray[np.bool_],
) -> ImageReads:
    """Reads of image files of which all but the kind stands in their own headers."""
    unknown = np.full(len(file), LOOK_INTO_FILE, np.int32)
    return ImageReads(
        files,
        file.astype(np.int32),
        np.ascontiguousarray(offset),
        np.ascontiguousarray(length),
        np.where(is_jpeg, CODEC_JPEG, CODEC_ENCODED).astype(np.uint8),
        unknown.astype(np.uint8),
        unknown,
        unknown,
        None,
        None,
    )


def _unfilled(
    files: _native.FileSet,
    file: npt.NDArray[np.int32],
    offset: Rows,
    length: Rows,
    codebook: _native.Codebook | None,
) -> ImageReads:
    """Reads of a packed dataset, with room for what `_fill_columns` puts in."""
    n = len(file)
    return ImageReads(
        files,
        file,
        offset,
        length,
        np.empty(n, np.uint8),
        np.empty(n, np.uint8),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.uint32),
        codebook,
    )


def _fill_columns(
    reads: ImageReads, places: Rows, reader: ShardReader, field: str, local: Rows
) -> None:
    for name in ("codec", "orientation", "height", "width", "crc32c"):
        getattr(reads, name)[places] = reader.fixed(f"{field}.{name}")[local]


def columns(dataset: AnyDataset, fields: Sequence[str], resident: bool = False) -> Columns | None:
    """Those of the fields that threads can gather; None where there are none."""
    if not isinstance(dataset, Dataset):
        return None
    fixed = [name for name in fields if is_fixed_width(dataset.schema.fields[name])]
    return Columns(dataset, fixed, resident) if fixed else None


def image_source(dataset: AnyDataset, field: str, stager: Stager | None = None) -> ImageSource:
    """The reads of one image field of a dataset; a stager is what brings a remote one's blocks."""
    if isinstance(dataset, Remote):
        if stager is None:
            raise ValueError(f"{dataset.path} is remote: there must be a stager")
        if isinstance(dataset, RemoteTars):
            return StagedTarImages(dataset, field, stager)
        return StagedImages(dataset, field, stager)
    if isinstance(dataset, FolderDataset):
        return FolderImages(dataset)
    if isinstance(dataset, TarDataset):
        return TarImages(dataset, field)
    return PackedImages(dataset, field)
