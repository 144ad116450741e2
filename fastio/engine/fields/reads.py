"""The reads of a batch of images, and the interface of their sources."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fastio import _native

Rows = npt.NDArray[np.int64]
WHOLE_FILE = _native.WHOLE_FILE
LOOK_INTO_FILE = 0  # an orientation, height or width that only the file's header tells
AS_STORED = 1  # an orientation: not to be turned, whatever the header says


@dataclass(frozen=True)
class ImageReads:
    """The reads of a batch, one entry per row; the argument of `fastio._native.Engine.submit`.

    Attributes:
        files: files that the numbers in `file` stand for.
        file: int32, number of the file.
        offset, length: int64, byte range; a length of -1 is the whole file.
        codec: uint8, storage format (`schema.CODEC_...`).
        orientation: uint8, EXIF orientation; 0 looks into the JPEG, 1 keeps the pixels as stored.
        height, width: int32, size of the stored pixels; 0 if unknown.
        crc32c: uint32, checksum of the bytes; None if they have no checksum.
        codebook: codebook for rows of the block codec; None if there are none.
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


class ImageSource(Protocol):
    """One image field of a dataset."""

    def reads(self, rows: Rows) -> ImageReads:
        """Returns the reads of global rows, int64 (n,)."""
        ...

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Decodes one image with Pillow, uint8 (H, W, C), for images that the engine cannot decode.

        The image is rotated according to the orientation in `reads`.

        Raises:
            FastioError, OSError: the image cannot be read or decoded.
        """
        ...

    def close(self) -> None:
        """Closes the files."""
        ...


def most_open() -> int:
    """Returns how many shard descriptors to keep: a quarter of the process's limit, up to 4096.

    With more shards than that, a shuffled epoch opens and closes a shard for each read, which costs
    a round trip on network file systems.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else min(soft // 4, 4096)
