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
from fastio.pack.cells import UNREAD, Bad, Item
from fastio.pack.progress import progress_bar
from fastio.pack.reencode import JPEG_START, reencode
from fastio.pack.sources import Source
from fastio.packed import CODEBOOK_BYTES

DEFAULT = "default"
TRAIN = "train"

# What to train on: enough that more does not help, and little enough for memory and patience.
_SAMPLE_IMAGES = 512
_SAMPLE_BYTES = 256 << 20
_SEED = 0


@dataclass(frozen=True)
class CodebookChoice:
    """Which codebook a pack uses.

    Attributes:
        origin: "default", "file" or "trained".
        data: its 16,640 bytes; None while it is still to be trained.
    """

    origin: str
    data: bytes | None

    @property
    def identity(self) -> str:
        """Returns what a resumed pack must have in common with the interrupted one."""
        return TRAIN if self.data is None else codebook_hash(self.data)


def choose_codebook(choice: str | os.PathLike[str] | None) -> CodebookChoice:
    """Returns the codebook that the argument `codebook` of `fastio.pack` selects.

    Raises:
        PackError: a file that cannot be read, or holds no codebook.
    """
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
            f"{path} is no codebook: {reason}; give 'default', 'train', or a file that "
            "tools/train_codebook wrote"
        ) from error
    return CodebookChoice("file", data)


def open_codebook(data: bytes) -> _native.Codebook:
    """Returns a codebook for the native encoder.

    Raises:
        ValueError: it is none.
    """
    if len(data) != CODEBOOK_BYTES:
        raise ValueError(f"it has {len(data)} bytes, expected {CODEBOOK_BYTES}")
    return _native.Codebook(np.frombuffer(data, dtype=np.uint8))


def codebook_hash(data: bytes) -> str:
    """Returns the xxh3_64 of a codebook as 16 hexadecimal digits."""
    return xxhash.xxh3_64(data).hexdigest()


def train_codebook(
    source: Source, max_side: int | None, quality: int | None, progress: bool = False
) -> bytes:
    """Returns a codebook (16,640 bytes) for the JPEG files of a source; equal for equal sources.

    Trained on up to 512 of them, spread evenly over the source, of up to 256 MiB in all, as they
    are after `reencode` with `max_side` and `quality`.

    Args:
        source: what to train on.
        max_side, quality: as for `reencode`.
        progress: show progress bars on stderr.

    Raises:
        PackError: the source cannot be read twice, or the sample has no JPEG file.
        SampleError: the source failed to give a sample.
    """
    jpegs = _sample(source, max_side, quality, progress)
    try:
        with progress_bar("training a codebook", None, None, progress):
            return _native.train_codebook(jpegs, seed=_SEED)
    except ValueError as error:
        raise PackError(
            f"there is nothing to train a codebook on: a sample of {source.name} has no sound "
            "JPEG file that the block codec can hold; use the default codebook"
        ) from error


def _sample(
    source: Source, max_side: int | None, quality: int | None, progress: bool
) -> list[NDArray[np.uint8]]:
    """Returns some of the source's JPEG files as they will be packed, uint8 (bytes,) each."""
    total = None if source.total is None else min(source.total, _SAMPLE_IMAGES)
    jpegs: list[NDArray[np.uint8]] = []
    nbytes = 0
    with progress_bar("reading images", "samples", total, progress) as advance:
        for item in source.sample(_SAMPLE_IMAGES):
            for data in _jpegs(item):
                try:
                    small = np.frombuffer(reencode(data, max_side, quality), dtype=np.uint8)
                except ValueError:
                    continue  # packing will say what is wrong with it
                jpegs.append(small)
                nbytes += len(small)
            advance(1)
            if nbytes >= _SAMPLE_BYTES:
                break
    return jpegs


def _jpegs(item: Item | Bad) -> Iterator[bytes]:
    """Yields the JPEG files of a sample."""
    for value in () if isinstance(item, Bad) else item.values:
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
