"""Images on their way into a shard: what is stored for each, and proof that it can be decoded."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageFile, JpegImagePlugin

from fastio import _native
from fastio.packed.pixels import (
    EXIF_ORIENTATION,
    exif_orientation,
    open_header,
    open_image,
    to_pixels,
    turn_upright,
)
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import CODEC_BLOCKS, CODEC_ENCODED, CODEC_JPEG, CODEC_RAW, Image

# What `codec=` of pack() and Writer may say.
ImageCodec = Literal["blocks", "jpeg", "raw"]
IMAGE_CODECS: tuple[ImageCodec, ...] = ("blocks", "jpeg", "raw")
# What it means where it is None.
DEFAULT_CODEC: ImageCodec = "blocks"

DEFAULT_QUALITY = 90
JPEG_START = b"\xff\xd8\xff"
_GRAY_MODES = ("1", "L", "LA", "La")
# A colour profile in these modes describes channels that are lost in the conversion to RGB.
_FOREIGN_MODES = ("CMYK", "YCbCr", "LAB", "HSV")
# How files of other formats begin that samples may hold as bytes.
_STARTS = (JPEG_START, b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class ImageOptions:
    """How images are stored; see the arguments of `fastio.pack`.

    Attributes:
        codec: What image files become: "blocks", "jpeg" or "raw".
        codebook: The codebook of the codec "blocks".
        max_side: The largest longer side in pixels; larger images are shrunk.
        quality: The quality of re-encoded JPEGs. If None, only shrunk images are re-encoded.
        max_pixels: Image files with more pixels are bad samples.
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
    """Returns whether bytes begin as a JPEG, PNG, GIF, TIFF, WebP or AVIF file does."""
    riff = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    return data.startswith(_STARTS) or riff or data[4:12] == b"ftypavif"


def encode_file(data: bytes, field: Image, options: ImageOptions) -> ImageCell:
    """Returns an image file as it is stored, after all of its pixels were decoded.

    The codec "blocks" turns JPEG files into block records if those can hold them. Other JPEG files
    that the native decoder reads, and files of other formats, are kept byte for byte. The codec
    "raw" stores upright pixels, and so does every codec for damaged JPEG files if Pillow is set to
    load them (`ImageFile.LOAD_TRUNCATED_IMAGES`).

    Raises:
        ValueError: The file is empty, damaged, unknown, or has more than 8 bits per channel.
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
    """Returns a JPEG file as it is stored; or its orientation, if Pillow has to decode it."""
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
    """Returns a Pillow image as raw pixels, without turning it upright; shrunk to `max_side`.

    Raises:
        ValueError: It cannot be decoded, has more than 8 bits per channel, or is in colour but the
            field is gray.
    """
    if field.mode == "L" and image.mode not in _GRAY_MODES:
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
    """Returns pixels, uint8 (H, W, C) or (H, W), as they are stored; shrunk to `max_side`.

    Raises:
        ValueError: The dtype, the shape or the number of channels is wrong.
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


# --- Re-encoding ---------------------------------------------------------------------------------


def reencode(
    data: bytes, max_side: int | None, quality: int | None, max_pixels: int = MAX_PIXELS
) -> bytes:
    """Returns an image file as a smaller JPEG, or unchanged if nothing is to be done.

    The image is re-encoded with Pillow if its longer side exceeds `max_side`, or if a quality is
    given (default for shrunk images: 90). The orientation, the colour profile and the chroma
    subsampling of a JPEG are kept. Transparency and other metadata are lost.

    Raises:
        ValueError: The file is damaged, unknown, has more than 8 bits per channel, more pixels than
            `max_pixels`, or exceeds what a JPEG can hold.
    """
    if quality is None and not _is_larger(data, max_side, max_pixels):
        return data
    orientation = None
    if data.startswith(JPEG_START):
        # Pillow's decoder accepts damaged data silently; this one raises.
        orientation = _native.jpeg_probe(np.frombuffer(data, dtype=np.uint8), max_pixels)[3]
    with open_image(data, max_pixels) as image:
        orientation = orientation or exif_orientation(image)
        pixels = to_pixels(image, "L" if image.mode in _GRAY_MODES else "RGB")
        sampling = (
            JpegImagePlugin.get_sampling(image)
            if isinstance(image, JpegImagePlugin.JpegImageFile)
            else -1
        )
        profile = None if image.mode in _FOREIGN_MODES else image.info.get("icc_profile")
    exif = PillowImage.Exif()
    if orientation != 1:
        exif[EXIF_ORIENTATION] = orientation
    file = io.BytesIO()
    try:
        _to_pillow(shrink(pixels, max_side)).save(
            file,
            "JPEG",
            quality=quality or DEFAULT_QUALITY,
            subsampling=sampling,
            icc_profile=profile,
            exif=exif.tobytes() if len(exif) else b"",
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be encoded as a JPEG: {error}") from error
    return file.getvalue()


def shrink(pixels: NDArray[np.uint8], max_side: int | None) -> NDArray[np.uint8]:
    """Returns pixels, uint8 (H, W, C), shrunk in proportion to a longer side of `max_side`.

    They are antialiased; smaller ones are returned unchanged, and so are all if it is None.
    """
    height, width = pixels.shape[:2]
    longer = max(height, width)
    if max_side is None or longer <= max_side:
        return pixels
    size = tuple(max(1, round(side * max_side / longer)) for side in (width, height))
    small: NDArray[np.uint8] = np.asarray(
        _to_pillow(pixels).resize((size[0], size[1]), PillowImage.Resampling.LANCZOS)
    )
    return small.reshape(size[1], size[0], pixels.shape[2])


def _is_larger(data: bytes, max_side: int | None, max_pixels: int) -> bool:
    """Returns whether the header states a larger image; False if it is not an image."""
    try:
        with open_header(data, max_pixels) as image:
            return max_side is not None and max(image.size) > max_side
    except Exception:  # decoding the file will raise a better error
        return False


def _to_pillow(pixels: NDArray[np.uint8]) -> PillowImage.Image:
    return PillowImage.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
