"""Images on their way into a shard: what is stored for each, and proof that it can be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageFile

from fastio import _native
from fastio.pack.reencode import JPEG_START, reencode, shrink
from fastio.packed.pixels import exif_orientation, open_image, to_pixels, turn_upright
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import CODEC_BLOCKS, CODEC_ENCODED, CODEC_JPEG, CODEC_RAW, Image

# What `codec=` of pack() and Writer may say.
ImageCodec = Literal["blocks", "jpeg", "raw"]
IMAGE_CODECS: tuple[ImageCodec, ...] = ("blocks", "jpeg", "raw")
# What it means where it is None.
DEFAULT_CODEC: ImageCodec = "blocks"

# How files of other formats begin that samples may hold as bytes.
_STARTS = (JPEG_START, b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class ImageOptions:
    """How images are to be stored.

    Attributes:
        codec: what becomes of image files: "blocks" stores the coefficients of JPEGs as records
            of the block codec and other files as they are, "jpeg" all files as they are, "raw"
            their pixels.
        codebook: for "blocks".
        max_side: pixels of the longer side at most; larger images are shrunk.
        quality: files are made JPEGs of this quality, 1 to 100; None does so only with those
            that are shrunk.
        max_pixels: of an image file; a larger one is a bad sample.
    """

    codec: ImageCodec
    codebook: _native.Codebook | None = None
    max_side: int | None = None
    quality: int | None = None
    max_pixels: int = MAX_PIXELS


class ImageCell(NamedTuple):
    """One image as a shard stores it; the fields are those of its columns."""

    data: bytes
    codec: int
    height: int
    width: int
    orientation: int
    crc32c: int


def _cell(data: bytes, codec: int, height: int, width: int, orientation: int = 1) -> ImageCell:
    crc = _native.crc32c(np.frombuffer(data, dtype=np.uint8))
    return ImageCell(data, codec, height, width, orientation, crc)


def is_image_file(data: bytes) -> bool:
    """Whether bytes begin as an image file does: JPEG, PNG, GIF, TIFF, WebP or AVIF."""
    riff = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    return data.startswith(_STARTS) or riff or data[4:12] == b"ftypavif"


def encode_file(data: bytes, field: Image, options: ImageOptions) -> ImageCell:
    """An image file's bytes as they are to be stored, after a look at every pixel.

    By the codec "blocks", JPEG files become block records where those can hold them. Other JPEG
    files that the native decoder reads are kept byte for byte, whatever they are called, and so
    are files of other formats, for Pillow. The codec "raw" stores upright pixels instead. So it is
    for damaged JPEG files where Pillow is set to load them (`ImageFile.LOAD_TRUNCATED_IMAGES`).

    Raises:
        ValueError: the file is empty, damaged, unknown, or has more than 8 bits a channel.
    """
    if options.codec != "raw" and (options.max_side or options.quality):
        data = reencode(data, options.max_side, options.quality, options.max_pixels)
    jpeg_orientation: int | None = None
    as_pixels = options.codec == "raw"
    if data.startswith(JPEG_START):
        try:
            stored = _encode_jpeg(data, options)
        except ValueError:
            if not ImageFile.LOAD_TRUNCATED_IMAGES:
                raise
            as_pixels = True
        else:
            if isinstance(stored, ImageCell):
                return stored
            jpeg_orientation = stored
    with open_image(data, options.max_pixels) as image:
        pixels = to_pixels(image, field.mode)
        orientation = exif_orientation(image) if jpeg_orientation is None else jpeg_orientation
    if as_pixels:
        return encode_pixels(turn_upright(pixels, orientation), field, options.max_side)
    return _cell(data, CODEC_ENCODED, pixels.shape[0], pixels.shape[1], orientation)


def _encode_jpeg(data: bytes, options: ImageOptions) -> ImageCell | int:
    """A JPEG file as it is to be stored; or, where Pillow has to decode it, its orientation.

    Raises:
        ValueError: it is damaged.
    """
    jpeg = np.frombuffer(data, dtype=np.uint8)
    if options.codec == "blocks":
        assert options.codebook is not None
        stored = _native.blocks_encode(jpeg, options.codebook, options.max_pixels)
        if stored is not None:
            record, height, width, orientation = stored
            return _cell(record, CODEC_BLOCKS, height, width, orientation)
    height, width, channels, orientation, kind = _native.jpeg_probe(jpeg, options.max_pixels)
    if options.codec != "raw" and channels in (1, 3) and kind in ("baseline", "progressive"):
        return _cell(data, CODEC_JPEG, height, width, orientation)
    return int(orientation)


def encode_pillow(image: PillowImage.Image, field: Image, max_side: int | None = None) -> ImageCell:
    """A Pillow image as raw pixels, as they stand (EXIF orientation is the sample's business).

    Args:
        image: of at most 8 bits a channel.
        field: what it is to be stored for.
        max_side: pixels of the longer side at most; it is shrunk where it is larger.

    Raises:
        ValueError: it cannot be decoded, has more than 8 bits a channel, or is in colour where
            the field is gray.
    """
    if field.mode == "L" and image.mode not in ("1", "L", "LA", "La"):
        raise ValueError(
            f"an image of mode {image.mode!r} in a gray field; convert it, or give a schema with "
            "Image('RGB')"
        )
    try:
        image.load()
    except OSError as error:
        raise ValueError(f"cannot be decoded: {error}") from error
    return encode_pixels(to_pixels(image, field.mode), field, max_side)


def encode_pixels(pixels: NDArray[Any], field: Image, max_side: int | None = None) -> ImageCell:
    """Pixels, uint8 (H, W, C) or (H, W), as they are, or shrunk to `max_side`.

    Raises:
        ValueError: another dtype or shape, or not the field's number of channels.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    fits = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == field.channels
    if not fits or not pixels.size:
        raise ValueError(
            f"pixels of dtype {pixels.dtype} and shape {pixels.shape}, expected uint8 (H, W, "
            f"{field.channels})"
        )
    pixels = shrink(pixels, max_side)
    return _cell(pixels.tobytes(), CODEC_RAW, pixels.shape[0], pixels.shape[1])
