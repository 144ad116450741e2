"""Stored images to pixels, one at a time: for indexing, thumbnails, checking and packing."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import UnidentifiedImageError

from fastio import _native
from fastio.runtime.lifecycle import hold_while_forking
from fastio.runtime.memory import MAX_PIXELS, Room
from fastio.schema import CODEC_BLOCKS, CODEC_NAMES, CODEC_RAW

JPEG_START = b"\xff\xd8\xff"
# How image files begin, by which bytes are recognised as images: JPEG, PNG, GIF and TIFF.
_STARTS = (JPEG_START, b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
EXIF_ORIENTATION = 0x0112  # the tag (EXIF 2.32)
# Of JPEG files with EXIF data: the first bytes of these data, some second bytes of markers, and the
# sizes of the TIFF types SHORT and LONG.
_EXIF = b"Exif\0\0"
_APP1, _END, _SCAN = 0xE1, 0xD9, 0xDA
_VALUE_BYTES = {3: 2, 4: 4}
# What an image of the block codec can be shrunk by while it is decoded, and costs less for it.
_DENOMINATORS = (8, 4, 2, 1)
# Modes whose pixels have at most 8 bits a channel. The others ("I", "I;16", "F", ...) have more,
# and Pillow converts them to RGB by cutting off what exceeds 255.
_EIGHT_BIT_MODES = frozenset(
    ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"]
)
# Pillow's raw modes of more than 8 bits a channel, such as "RGB;16B", and PPM's large maxima.
# "BGR;15" and "BGR;16" are pixels of 16 bits, not channels.
_DEEP_RAW_MODE = re.compile(r"(?<!BGR);(?:1[0-6]|32)|\b65535\b")
# What a pixel takes while it is decoded: in Pillow, in another mode, and as an array.
_PIXEL_BYTES = 12
_ROOM = Room(freely=16 << 20)
_PILLOW_LIMIT = threading.RLock()
hold_while_forking(_PILLOW_LIMIT)  # a child must not keep Pillow's setting as it is meanwhile
_LARGER = "If you trust the data, pass a larger max_pixels to fastio.open or fastio.pack"


def is_image_file(begin: bytes) -> bool:
    """Returns whether a file is a JPEG, PNG, GIF, TIFF, WebP, AVIF or BMP, by its first bytes."""
    riff = begin[:4] == b"RIFF" and begin[8:12] == b"WEBP"
    bitmap = begin[:2] == b"BM" and begin[6:10] == bytes(4)
    return begin.startswith(_STARTS) or riff or bitmap or begin[4:12] == b"ftypavif"


def decode_image(
    data: bytes | memoryview | NDArray[np.uint8],
    codec: int,
    height: int,
    width: int,
    orientation: int,
    mode: Literal["RGB", "L"],
    codebook: _native.Codebook | None = None,
    at_least: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """Returns the upright pixels of one stored image: uint8 (H, W, C), C-contiguous.

    Args:
        data: The stored bytes; uint8 (n,) if they are an array.
        codec: How they are stored, a `CODEC_...` number of `fastio.schema`.
        height, width: The size of the stored pixels, before orientation; needed for raw pixels.
        orientation: The EXIF orientation, 1 to 8, that turns the stored pixels upright.
        mode: The mode of the result.
        codebook: The dataset's codebook, which the block codec needs.
        at_least: For thumbnails: a length in pixels of the longer side that is enough. Images of
            the block codec may then be smaller than they are stored.
        max_pixels: Larger images are refused, except raw pixels.

    Raises:
        ValueError: The data cannot be decoded; the message is a reason, without a name.
    """
    if codec >= len(CODEC_NAMES):
        raise ValueError(
            f"it is stored with the codec {codec}, which this version of fastio does not know"
        )
    stored = np.frombuffer(data, dtype=np.uint8)
    channels = 3 if mode == "RGB" else 1
    if codec == CODEC_BLOCKS:
        if codebook is None:
            raise ValueError("it is stored as blocks, but the dataset's manifest has no codebook")
        denominator = _denominator(height, width, at_least)
        return _native.blocks_pixels(
            stored, codebook, orientation, denominator, channels, 0, max_pixels
        )
    if codec == CODEC_RAW:
        expected = height * width * channels
        if len(stored) != expected:
            raise ValueError(
                f"raw image of {height} x {width} x {channels} needs {expected} bytes, "
                f"found {len(stored)}"
            )
        pixels = stored.reshape(height, width, channels)
        return np.array(turn_upright(pixels, orientation), order="C")
    return upright_pixels(stored.data, mode, orientation, max_pixels)


def _denominator(height: int, width: int, at_least: int | None) -> int:
    """Returns how much an image can be shrunk with a longer side of at least `at_least` pixels."""
    if at_least is None:
        return 1
    longer = max(height, width)
    return next((n for n in _DENOMINATORS if longer >= n * at_least), 1)


def upright_pixels(
    data: bytes | memoryview,
    mode: Literal["RGB", "L"],
    orientation: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """Returns the upright pixels of an image file, uint8 (H, W, C), C-contiguous.

    If the orientation is None, the file's own is used. Raises ValueError as `open_image` does.
    """
    with open_image(data, max_pixels) as image:
        turn = exif_orientation(image) if orientation is None else orientation
        return np.ascontiguousarray(turn_upright(to_pixels(image, mode), turn))


@contextmanager
def open_image(
    data: bytes | memoryview, max_pixels: int = MAX_PIXELS
) -> Iterator[PillowImage.Image]:
    """Opens an image file as a Pillow image, fully decoded, which the end of the block closes.

    All threads together decode only as many large images at a time as fit in memory.

    Raises:
        ValueError: Pillow does not know the format, the file is damaged, has more pixels than
            `max_pixels`, or has more than 8 bits per channel.
    """
    if not len(data):
        raise ValueError("the file is empty (0 bytes)")
    with _reasons(data):
        image = open_header(data, max_pixels)
    with image:
        with _reasons(data):
            pixels = image.width * image.height
            if pixels > max_pixels:
                raise _RefusedError(
                    f"it has {image.width} x {image.height} pixels, more than max_pixels="
                    f"{max_pixels:,}. {_LARGER}"
                )
            check_depth(image)
        with _ROOM.taken(pixels * _PIXEL_BYTES):
            with _reasons(data):
                image.load()
            yield image


@contextmanager
def _reasons(data: bytes | memoryview) -> Iterator[None]:
    """Raises any error of Pillow as a ValueError whose message is a reason."""
    try:
        yield
    except UnidentifiedImageError as error:
        start = bytes(data[:8]).hex(" ")
        raise ValueError(f"not an image of a format that Pillow knows (begins {start})") from error
    except _RefusedError:
        raise
    except PillowImage.DecompressionBombError as error:
        raise ValueError(f"{error} {_LARGER}") from error
    except Exception as error:  # Pillow's plugins let parsers' errors of every kind through
        raise ValueError(f"cannot be decoded: {error or type(error).__name__}") from error


def open_header(data: bytes | memoryview, max_pixels: int) -> PillowImage.Image:
    """Opens a file and reads its header; `max_pixels` replaces the limit of Pillow."""
    own = PillowImage.MAX_IMAGE_PIXELS
    if own is None or max_pixels <= 2 * own:
        return PillowImage.open(io.BytesIO(data))
    with _PILLOW_LIMIT:
        own, PillowImage.MAX_IMAGE_PIXELS = PillowImage.MAX_IMAGE_PIXELS, None
        try:
            return PillowImage.open(io.BytesIO(data))
        finally:
            PillowImage.MAX_IMAGE_PIXELS = own


def to_pixels(image: PillowImage.Image, mode: Literal["RGB", "L"]) -> NDArray[np.uint8]:
    """Returns a Pillow image as uint8 (H, W, C); transparency is dropped, as torchvision does.

    Raises:
        ValueError: It has more than 8 bits per channel, or a mode that cannot be converted.
    """
    check_depth(image)
    if image.mode != mode:
        if image.mode == "P" and "transparency" in image.info:
            # The same pixels as in one step, without Pillow's warning about it.
            image = image.convert("RGBA")
        image = image.convert(mode)
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def pillow_image(pixels: NDArray[np.uint8]) -> PillowImage.Image:
    """Returns a Pillow image, in mode RGB or L, with a copy of pixels (H, W, C)."""
    # Pillow copies RGB, and would share the memory of gray pixels.
    return PillowImage.fromarray(pixels[:, :, 0].copy() if pixels.shape[2] == 1 else pixels)


class _RefusedError(ValueError):
    """The image has more than 8 bits per channel, or too many pixels."""


def check_depth(image: PillowImage.Image) -> None:
    """Raises ValueError if an image has more than 8 bits per channel.

    Some files hide their depth behind an 8-bit mode: Pillow opens 16-bit RGB in mode RGB and
    drops the lower bytes. Before an image is loaded, its tiles still tell.
    """
    tiles = [str(tile[3]) for tile in getattr(image, "tile", [])]
    deep = any(_DEEP_RAW_MODE.search(tile) for tile in tiles)
    if deep or image.mode not in _EIGHT_BIT_MODES:
        raise _RefusedError(
            f"it has more than 8 bits a channel (Pillow mode {image.mode!r}, raw mode "
            f"{', '.join(tiles) or 'unknown'}), which 8-bit pixels cannot represent without "
            "loss: convert it, or pack its values as an Array"
        )


def exif_orientation(image: PillowImage.Image) -> int:
    """Returns the EXIF orientation of a Pillow image, 1 to 8; 1 if it is missing or invalid."""
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # damaged EXIF data raises errors of every kind; the pixels are still good
        return 1
    return orientation if orientation in range(1, 9) else 1


def turn_upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Returns pixels, uint8 (H, W, C), after undoing an EXIF orientation (EXIF 2.32, tag 0x0112).

    The result has the shape (W, H, C) for orientations 5 to 8, and may be a view. Raises ValueError
    for an orientation that is not 1 to 8.
    """
    if not 1 <= orientation <= 8:
        raise ValueError(f"EXIF orientation must be 1 to 8, got {orientation}")
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def without_orientation(jpeg: bytes) -> bytes:
    """Returns a JPEG file with its EXIF orientation, if there is one, set to 1: not turned."""
    at = 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] not in (_END, _SCAN):
        if jpeg[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at + 1] == _APP1 and jpeg[at + 4 : at + 10] == _EXIF:
            return jpeg[: at + 10] + _reset(jpeg[at + 10 : end]) + jpeg[end:]
        at = end
    return jpeg


def _reset(tiff: bytes) -> bytes:
    """Returns EXIF data with the orientation 1, if they have one."""
    order: Literal["little", "big"] = "little" if tiff.startswith(b"II") else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    # Only the first directory is read: the second one describes the thumbnail.
    first = number(4, 4)
    for entry in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        size, value = _VALUE_BYTES.get(number(entry + 2, 2)), entry + 8
        if number(entry, 2) == EXIF_ORIENTATION and size is not None and value + size <= len(tiff):
            return tiff[:value] + (1).to_bytes(size, order) + tiff[value + size :]
    return tiff
