"""Files and byte ranges that the engine's threads read for the images of a batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.errors import ImageError
from fastio.order.plan import PlannedBatch, Together
from fastio.packed.layout import LOOK_INTO_FILE, WHOLE_FILE, ImageReads
from fastio.packed.remote import Remote
from fastio.packed.rows import Rows
from fastio.recoded import RecodedImages
from fastio.runtime.files import most_open
from fastio.schema import CODEC_ENCODED
from fastio.stage import Stager

# Most open files of a field. With more shards than that, a shuffled epoch opens and closes a shard
# for each read, which costs a round trip on network file systems.
_OPEN_FILES = 4096
_OF_PIECES = 64  # most open files of a batch with recoded images, which may use one per row
_TURNED = 5  # EXIF orientations from here on swap height and width
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
ImageFiles = _native.FileSet | tuple[Sequence[npt.NDArray[np.uint8]], bool]


class FoundImages(NamedTuple):
    """Where the images of one or more batches lie.

    Attributes:
        files: the files that the reads refer to. For images in memory: a tuple of the arrays and
            whether their images are planar.
        reads: the reads, for the native threads.
        foreign: the numbers in `reads` of the images that Pillow decodes: int64, ascending.
        codebook, pieces: as in `ImageReads`.
        size: the (height, width) of all images, turned upright. None if the images differ in size,
            if a size is not known without opening a file, or if `ImageSource` has `sizes` False.
    """

    files: ImageFiles
    reads: _native.ImageReads
    foreign: Int64s
    codebook: _native.Codebook | None
    pieces: Int64s | None
    size: tuple[int, int] | None

    def pieces_of(self, first: int, rows: int) -> Int64s | None:
        """Returns `pieces` of a batch; the arguments are those of `foreign_of`."""
        return None if self.pieces is None else self.pieces[first : first + rows]

    def foreign_of(self, first: int, rows: int) -> list[int]:
        """Returns the places in a batch of the images that Pillow decodes.

        Args:
            first: number of the batch's first image in `reads`.
            rows: number of its images.
        """
        if not self.foreign.size:
            return []
        begin, end = np.searchsorted(self.foreign, (first, first + rows))
        return list((self.foreign[begin:end] - first).tolist())


def _found(files: ImageFiles, file: Int32s, reads: ImageReads, most_pixels: int = 0) -> FoundImages:
    """Returns reads whose files have the numbers `file`, int32 (n,), for the native threads.

    `most_pixels` is that of `_common_size`; with 0, nobody asks for the size.
    """
    native = _native.ImageReads(
        file,
        reads.offset,
        reads.length,
        reads.codec,
        reads.orientation,
        reads.height,
        reads.width,
        reads.crc32c,
        reads.index,
    )
    foreign = np.flatnonzero(reads.codec == CODEC_ENCODED)
    size = _common_size(reads, most_pixels) if most_pixels else None
    return FoundImages(files, native, foreign, reads.codebook, reads.pieces, size)


def _common_size(reads: ImageReads, most_pixels: int) -> tuple[int, int] | None:
    """Returns the common (height, width) of all images, turned upright; None if there is none.

    Also None for images of more than `most_pixels`, each of which is an error: no memory is
    allocated for them.
    """
    if not len(reads.height):
        return None
    height, width = int(reads.height[0]), int(reads.width[0])
    if LOOK_INTO_FILE in (height, width) or height * width > most_pixels:
        return None
    if (reads.height != height).any() or (reads.width != width).any():
        return None
    if height != width:
        turned = reads.orientation >= _TURNED
        if (reads.orientation == LOOK_INTO_FILE).any() or turned.any() != turned.all():
            return None
        if turned.any():
            height, width = width, height
    return height, width


class ImageSource:
    """The images of one field. Safe to use from several threads.

    Args:
        dataset: the dataset, which tells where its images lie and how they are stored.
        field: name of an image field.
        stager: fetches the blocks of a remote dataset; images then lie in local blocks.
        recoded: the recoded images of the field; None if there is no cache.
        direct: whether files that stay open are read past the page cache (O_DIRECT), if the system
            supports it.
        sizes: whether to determine `FoundImages.size`.

    Raises:
        ValueError: the dataset is remote, and there is no stager.
    """

    def __init__(
        self,
        dataset: Rows,
        field: str,
        stager: Stager | None = None,
        recoded: RecodedImages | None = None,
        direct: bool = False,
        sizes: bool = False,
    ) -> None:
        self.recoded = recoded
        self._sizes = sizes
        self._dataset = dataset
        self._field = field
        self._remote: Remote | None = dataset.remote_part
        if self._remote is not None and stager is None:
            raise ValueError(f"{dataset.path} is remote, and has no stager")
        self._stager = stager if self._remote is not None else None
        self._files = OpenFiles(direct)

    def reads(self, rows: Int64s, *, original: bool = False) -> FoundImages:
        """Returns where the images of rows, int64 (n,), lie.

        Args:
            original: Whether all images are read from their originals.
        """
        most = self._dataset.max_pixels if self._sizes else 0
        where = reads = self._dataset.image_reads(self._field, rows)
        if reads.memory is not None:
            return _found((reads.memory, reads.planar), reads.file, reads, most)
        if self._stager is not None:
            reads = _staged(reads, self._stager, self._field, self._dataset.rows_of(rows))
        if self.recoded is not None and not original:
            reads = self.recoded.reads(rows, where, reads)
        return _found(*self._files.of(reads), reads, most)

    def reads_of(self, batch: PlannedBatch, rows: Int64s) -> tuple[FoundImages, int]:
        """Returns where the images of a batch lie, whose rows are `rows`.

        Small batches are looked up together. Exceptions are images in memory, which may move before
        the next batch, and blocks of remote datasets, which may be evicted.

        Returns:
            The places of the images of this batch and possibly of others, and the number of the
            first image of this batch.
        """
        together = batch.together
        if together is None or self._stager is not None:
            return self.reads(rows), 0
        if self not in together.found:
            together.found[self] = self._of_all(together)
        found = together.found[self]
        return (self.reads(rows), 0) if found is None else (found, batch.first)

    def _of_all(self, together: Together) -> FoundImages | None:
        try:
            found = self.reads(together.rows)
        except Exception:  # the batch with the faulty rows will raise it
            return None
        return None if isinstance(found.files, tuple) else found

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Decodes one image with Pillow, uint8 (H, W, C), for images that the engine cannot decode.

        The image is turned as the orientation in `reads` says.

        Raises:
            FastioError, OSError: the image cannot be read or decoded.
        """
        if self._remote is not None:
            with suppress(OSError, KeyError, ImageError):  # evicted or damaged meanwhile
                return self._remote.image(self._field, row, data=self._staged_bytes(row))
        return self._dataset.image(self._field, row)

    def _staged_bytes(self, row: int) -> npt.NDArray[np.uint8]:
        """Returns a row's bytes from its block, which its batch holds."""
        assert self._stager is not None
        rows = np.array([row], np.int64)
        reads = self._dataset.image_reads(self._field, rows)
        holding = self._dataset.rows_of(rows)
        block, offset = self._stager.blocks.locate(self._field, holding, reads)
        path = self._stager.path(int(block[0]))
        return np.fromfile(path, np.uint8, int(reads.length[0]), offset=int(offset[0]))

    def close(self) -> None:
        """Closes the files, and ends the thread that recodes images."""
        self._files.close()
        if self.recoded is not None:
            self.recoded.close()


def _staged(reads: ImageReads, stager: Stager, field: str, rows: Int64s) -> ImageReads:
    """Returns the reads of rows from the blocks that were fetched for them.

    A negative row stands for padding in a list (`NO_IMAGE`), which lies in no block. Padding is
    never read, so it is given the block of another image. At least one row must be an image.
    """
    there = rows >= 0
    if there.all():
        block, offset = stager.blocks.locate(field, rows, reads)
    else:
        some = replace(reads, file=reads.file[there], offset=reads.offset[there])
        blocks, offsets = stager.blocks.locate(field, rows[there], some)
        block, offset = np.full(len(rows), blocks[0]), np.zeros(len(rows), np.int64)
        block[there], offset[there] = blocks, offsets
    # Blocks come and go, and a descriptor that is kept would keep the bytes of one that is gone.
    return replace(
        reads,
        path=stager.path,
        file=block.astype(np.int32),
        offset=offset,
        same_files=False,
    )


class OpenFiles:
    """The files of a field's reads as the native engine numbers them. Thread-safe.

    Files whose numbers are the same in every batch stay open, up to a limit. Others are numbered
    for one batch.

    Args:
        direct: whether files that stay open are read past the page cache (O_DIRECT), if the system
            supports it.
    """

    def __init__(self, direct: bool = False) -> None:
        self._kept = _native.FileSet(keep_open=True, max_open=most_open(_OPEN_FILES), direct=direct)
        self._numbers = np.empty(0, np.int32)  # of `_kept`, by the dataset's; -1: not added yet
        self._lock = threading.Lock()

    def of(self, reads: ImageReads) -> tuple[_native.FileSet, Int32s]:
        """Returns the files of reads, and each row's number among them, int32 (n,)."""
        if not reads.same_files:
            numbers, file = np.unique(reads.file, return_inverse=True)
            # Whole files are read once: to keep them open would only take descriptors.
            several = reads.pieces is not None or not (reads.length == WHOLE_FILE).any()
            most = most_open(_OPEN_FILES if reads.pieces is None else _OF_PIECES)
            files = _native.FileSet(keep_open=several, max_open=most)
            files.add([reads.path(number) for number in numbers.tolist()])
            return files, file.astype(np.int32)
        if self._lacks(reads.file):
            with self._lock:
                self._add(reads)
        return self._kept, self._numbers[reads.file]

    def close(self) -> None:
        """Closes the files that were kept open."""
        self._kept.close()

    def _lacks(self, file: npt.NDArray[np.int32]) -> bool:
        numbers = self._numbers
        return bool(file.max(initial=-1) >= len(numbers) or (numbers[file] < 0).any())

    def _add(self, reads: ImageReads) -> None:
        found = np.unique(reads.file)
        numbers = np.full(max(len(self._numbers), int(found[-1]) + 1), -1, np.int32)
        numbers[: len(self._numbers)] = self._numbers
        new = found[numbers[found] < 0]
        first = self._kept.add([reads.path(number) for number in new.tolist()])
        numbers[new] = np.arange(first, first + len(new))
        self._numbers = numbers  # replaced as a whole: other threads read it without the lock
