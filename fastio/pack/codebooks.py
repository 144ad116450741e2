"""Codebooks for a pack: the built-in one, one from a file, or one trained on the source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import PackError
from fastio.pack.images import JPEG_START, ImageOptions, reencode
from fastio.pack.items import UNREAD, Item, Source
from fastio.pack.progress import progress_bar
from fastio.packed import CODEBOOK_BYTES

DEFAULT = "default"
TRAIN = "train"

# What to train on: enough that more does not help, and little enough for memory and patience.
_SAMPLE_IMAGES = 512
_SAMPLE_BYTES = 256 << 20
_SEED = 0


@dataclass(frozen=True)
class CodebookChoice:
    """The codebook that a pack uses.

    Attributes:
        origin: "default", "file" or "trained".
        data: The 16,640 bytes; None if it is still to be trained.
    """

    origin: str
    data: bytes | None

    @property
    def identity(self) -> str:
        """Returns what a resumed pack must have in common with the interrupted one."""
        return TRAIN if self.data is None else codebook_hash(self.data)


def choose_codebook(choice: str | os.PathLike[str] | None) -> CodebookChoice:
    """Returns the codebook that the argument `codebook` of `fastio.pack` selects, or PackError."""
    if choice is None or choice == DEFAULT:
        path = Path(__file__).with_name("codebook.bin")
        return CodebookChoice("default", path.read_bytes())
    if choice == TRAIN:
        return CodebookChoice("trained", None)
    path = Path(choice)
    try:
        data = path.read_bytes()
        open_codebook(data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackError(
            f"{path} is not a codebook: {reason}. Use 'default', 'train', or a file that "
            "tools/train_codebook wrote"
        ) from error
    return CodebookChoice("file", data)


def open_codebook(data: bytes) -> _native.Codebook:
    """Returns a codebook for the native encoder; raises ValueError if it is not valid."""
    if len(data) != CODEBOOK_BYTES:
        raise ValueError(f"it has {len(data)} bytes, expected {CODEBOOK_BYTES}")
    return _native.Codebook(np.frombuffer(data, dtype=np.uint8))


def codebook_hash(data: bytes) -> str:
    """Returns the xxh3_64 of a codebook as 16 hexadecimal digits."""
    return xxhash.xxh3_64(data).hexdigest()


def train_codebook(source: Source, images: ImageOptions, progress: bool = False) -> bytes:
    """Returns a codebook (16,640 bytes) for the JPEG files of a source; equal for equal sources.

    It is trained on up to 512 files, spread evenly over the source, of at most 256 MiB in all, as
    they are after `reencode`.

    Raises:
        PackError: The source cannot be read twice, or the sample has no JPEG file.
        SampleError: The source failed to give a sample.
    """
    jpegs = _sample(source, images, progress)
    try:
        with progress_bar("training a codebook", None, None, progress):
            return _native.train_codebook(jpegs, seed=_SEED)
    except ValueError as error:
        raise PackError(
            f"a codebook cannot be trained: a sample of {source.name} contains no intact JPEG "
            "file that the block codec supports; use the default codebook"
        ) from error


def _sample(source: Source, images: ImageOptions, progress: bool) -> list[NDArray[np.uint8]]:
    """Returns some of the source's JPEG files as they will be packed, uint8 (bytes,) each."""
    total = None if source.total is None else min(source.total, _SAMPLE_IMAGES)
    jpegs: list[NDArray[np.uint8]] = []
    nbytes = 0
    with progress_bar("reading images", "samples", total, progress) as advance:
        for item in source.sample(_SAMPLE_IMAGES):
            for data in _jpegs(item):
                try:
                    data = reencode(data, images.max_side, images.quality)
                    small = np.frombuffer(data, dtype=np.uint8)
                except ValueError:
                    continue  # packing will say what is wrong with it
                jpegs.append(small)
                nbytes += len(small)
            advance(1)
            if nbytes >= _SAMPLE_BYTES:
                break
    return jpegs


def _jpegs(item: Item) -> Iterator[bytes]:
    """Yields the JPEG files of a sample."""
    for value in item.values:
        data = value
        if isinstance(value, UNREAD):
            try:
                data = value.read()
            except (OSError, ValueError):
                continue  # packing will say so
        if isinstance(data, (bytes, bytearray, memoryview)):
            data = bytes(data)
            if data.startswith(JPEG_START):
                yield data
