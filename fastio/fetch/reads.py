"""What the engine reads for a batch of images, and who says it."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fastio import _native

Rows = npt.NDArray[np.int64]
WHOLE_FILE = -1
LOOK_INTO_FILE = 0  # an orientation, height or width that only the file's header tells
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


def most_open() -> int:
    """How many shards' descriptors to keep: a quarter of what the process may have, up to 4096.

    A shuffled epoch opens and closes a shard for each read once there are more shards than that,
    which costs a round trip on network file systems.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else min(soft // 4, 4096)
