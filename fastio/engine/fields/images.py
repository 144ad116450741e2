"""Maps the rows of an image field to the byte ranges that the engine reads for a batch.

Packed datasets, image folders and tars differ here and in no later stage. An `ImageSource` serves
one image field; its files are numbered by a `fastio._native.FileSet`, from which the engine's
threads read. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.fields.hugging_face import HuggingFaceImages
from fastio.engine.fields.reads import (
    AS_STORED,
    LOOK_INTO_FILE,
    WHOLE_FILE,
    ImageReads,
    ImageSource,
    Rows,
    most_open,
)
from fastio.errors import ImageError
from fastio.packed import Dataset
from fastio.packed.remote import RemoteDataset
from fastio.packed.shard import ShardReader
from fastio.schema import CODEC_ENCODED, CODEC_JPEG
from fastio.sources import (
    AnyDataset,
    FolderDataset,
    HuggingFaceDataset,
    Remote,
    RemoteTars,
    TarDataset,
)
from fastio.stage import Stager


class PackedImages:
    """An image field of a packed dataset: ranges of shards that stay open."""

    def __init__(self, dataset: Dataset, field: str) -> None:
        self._dataset = dataset
        self._field = field
        self._files = _native.FileSet(keep_open=True, max_open=most_open())
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
        """Does nothing: no file stays open."""


class TarImages:
    """An image field of tars: ranges of tars that stay open."""

    def __init__(self, dataset: TarDataset, field: str) -> None:
        self._dataset = dataset
        self._field = field
        self._files = _native.FileSet(keep_open=True, max_open=most_open())
        self._files.add(list(dataset.tars))

    def reads(self, rows: Rows) -> ImageReads:
        tar, offset, length, is_jpeg = self._dataset.extents(self._field, rows)
        self._dataset.check_versions(tar)
        return _described_by_files(self._files, tar, offset, length, is_jpeg)

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._dataset.image(self._field, row)

    def close(self) -> None:
        self._files.close()


class StagedImages:
    """An image field of a remote dataset: ranges of fetched blocks."""

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
        """Returns a row's bytes from its block, which its batch holds."""
        block, offset, length = self._stager.blocks.places(self._field, np.array([row], np.int64))
        path = self._stager.path(int(block[0]))
        return np.fromfile(path, np.uint8, int(length[0]), offset=int(offset[0]))

    def close(self) -> None:
        """Does nothing: no file stays open."""


class StagedTarImages:
    """An image field of remote tars: ranges of fetched blocks."""

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
        """Does nothing: no file stays open."""


def _staged_places(
    stager: Stager, field: str, rows: Rows
) -> tuple[_native.FileSet, npt.NDArray[np.int32], Rows, Rows]:
    """Returns the block files of rows, and each row's file number, offset and length."""
    block, offset, length = stager.blocks.places(field, rows)
    numbers, file = np.unique(block, return_inverse=True)
    # Numbered anew for every batch: blocks come and go, and a kept descriptor would keep the bytes
    # of one that is gone.
    files = _native.FileSet(keep_open=True, max_open=most_open())
    files.add([stager.path(number) for number in numbers.tolist()])
    return files, file.astype(np.int32), offset, length


def _described_by_files(
    files: _native.FileSet,
    file: npt.NDArray[Any],
    offset: Rows,
    length: Rows,
    is_jpeg: npt.NDArray[np.bool_],
) -> ImageReads:
    """Returns reads of image files whose properties, except the kind, are in their headers."""
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
    """Returns reads of a packed dataset with room for the values that `_fill_columns` sets."""
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


def image_source(dataset: AnyDataset, field: str, stager: Stager | None = None) -> ImageSource:
    """Returns the reads of an image field; the stager fetches the blocks of a remote dataset."""
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
    if isinstance(dataset, HuggingFaceDataset):
        return HuggingFaceImages(dataset, field)
    return PackedImages(dataset, field)
