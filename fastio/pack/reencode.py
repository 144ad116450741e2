"""Re-encodes images as smaller JPEGs when packing, if that is asked for."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import JpegImagePlugin

from fastio import _native
from fastio.packed.pixels import (
    EXIF_ORIENTATION,
    exif_orientation,
    open_header,
    open_image,
    to_pixels,
)
from fastio.runtime.memory import MAX_PIXELS

DEFAULT_QUALITY = 90
JPEG_START = b"\xff\xd8\xff"
_GRAY_MODES = ("1", "L", "LA", "La")
# A colour profile in these modes describes channels that are lost in the conversion to RGB.
_FOREIGN_MODES = ("CMYK", "YCbCr", "LAB", "HSV")


def reencode(
    data: bytes, max_side: int | None, quality: int | None, max_pixels: int = MAX_PIXELS
) -> bytes:
    """Returns an image file as a smaller JPEG, or unchanged if nothing is to be done.

    The image is re-encoded with Pillow if its longer side exceeds `max_side`, or if a quality is
    given. The orientation, the colour profile and the chroma subsampling of a JPEG are kept.
    Transparency and other metadata are lost.

    Args:
        data: A whole image file.
        max_side: The largest longer side in pixels. Larger images are shrunk with antialiasing, in
            proportion.
        quality: The quality of the JPEG, 1 to 100. If None, 90 for shrunk images.
        max_pixels: Images with more pixels are refused.

    Raises:
        ValueError: If the file is damaged, unknown, has more than 8 bits a channel, or exceeds what
            a JPEG can hold.
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
    """Returns pixels shrunk in proportion so that the longer side is at most `max_side`.

    Args:
        pixels: uint8 (H, W, C), C 1 or 3.
        max_side: The largest longer side. If None, pixels are returned unchanged.

    Returns:
        uint8 (h, w, C), antialiased if shrunk, else the same array.
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
