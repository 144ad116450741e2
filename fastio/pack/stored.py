"""Converts stored images back to files."""

from __future__ import annotations

import io
from collections.abc import Callable

from PIL import Image as PillowImage

from fastio import _native
from fastio.errors import ImageError
from fastio.packed import Dataset, StoredImage, decode_image
from fastio.schema import CODEC_BLOCKS, CODEC_JPEG, CODEC_RAW, Image

# Extensions that differ from the lower-case name of Pillow's format.
_SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2"}


def image_file(
    dataset: Dataset, field: str, row: int, hold: Callable[[int], None]
) -> tuple[bytes, str]:
    """Returns a stored image as the bytes of a file, and the file's extension.

    Args:
        dataset: A packed dataset.
        field: An image field.
        row: The global row number from 0.
        hold: Called with the number of bytes that are about to be held in memory.

    Raises:
        ImageError, ShardCorrupt: If it is damaged.
    """
    stored = dataset.stored_image(field, row)
    hold(stored.data.nbytes)
    kind = dataset.schema.fields[field]
    assert isinstance(kind, Image)
    try:
        stored.check()
        return _image_file(stored, kind, dataset.codebook)
    except ValueError as error:
        raise ImageError(dataset.path, row, dataset.sample_name(row), error) from error


def _image_file(
    stored: StoredImage, kind: Image, codebook: _native.Codebook | None
) -> tuple[bytes, str]:
    if stored.codec == CODEC_BLOCKS:
        if codebook is None:
            raise ValueError("it is stored as blocks, but the manifest has no codebook")
        return _native.blocks_export(stored.data, codebook), ".jpg"
    if stored.codec == CODEC_RAW:
        return _png(stored, kind), ".png"
    data = stored.data.tobytes()
    if stored.codec == CODEC_JPEG:
        return data, ".jpg"
    return data, _suffix(data)


def _png(stored: StoredImage, kind: Image) -> bytes:
    pixels = decode_image(*stored[:5], kind.mode)
    file = io.BytesIO()
    PillowImage.fromarray(pixels[:, :, 0] if kind.channels == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _suffix(data: bytes) -> str:
    """Returns the extension for an image file, by its contents.

    Raises:
        ValueError: If Pillow does not know the format.
    """
    try:
        with PillowImage.open(io.BytesIO(data)) as image:
            kind = image.format or ""
    except Exception as error:  # Pillow's plugins raise errors of any type
        raise ValueError(f"not an image that Pillow knows: {error}") from error
    return _SUFFIXES.get(kind, f".{kind.lower()}")
