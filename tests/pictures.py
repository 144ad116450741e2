"""Small image files for tests, good ones and bad ones."""

from __future__ import annotations

import io
import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ORIENTATION_TAG = 0x0112
_SMALL = 1 << 15  # pixels of a picture that is kept


def pixels(height: int, width: int, seed: int = 0, channels: int = 3) -> NDArray[np.uint8]:
    """Smooth colours with a little noise: uint8 (H, W, C)."""
    drawn = _small_pixels if height * width <= _SMALL else _pixels
    return drawn(height, width, seed, channels).copy()


def _pixels(height: int, width: int, seed: int, channels: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        127 + 100 * np.sin(y * fy + x * fx + phase)
        for fy, fx, phase in rng.uniform(0.05, 0.4, (channels, 3))
    ]
    noisy = np.stack(waves, -1) + rng.normal(0, 4, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


# Hundreds of tests write folders of the same small pictures.
_small_pixels = lru_cache(512)(_pixels)


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A Pillow image as a file's bytes."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(height: int = 24, width: int = 32, seed: int = 0) -> Image.Image:
    """A small RGB image."""
    return Image.fromarray(pixels(height, width, seed))


def jpeg(height: int = 24, width: int = 32, seed: int = 0, **options: Any) -> bytes:
    """A JPEG file."""
    if options or height * width > _SMALL:
        return save(picture(height, width, seed), "JPEG", **options)
    return _small_jpeg(height, width, seed)


@lru_cache(512)
def _small_jpeg(height: int, width: int, seed: int) -> bytes:
    return save(picture(height, width, seed), "JPEG")


def oriented_jpeg(orientation: int, height: int = 24, width: int = 32) -> bytes:
    """A JPEG file with an EXIF orientation."""
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    return jpeg(height, width, exif=exif)


def cmyk_jpeg() -> bytes:
    """A JPEG file of four components."""
    return save(picture().convert("CMYK"), "JPEG")


def png(height: int = 24, width: int = 32, seed: int = 0, **options: Any) -> bytes:
    """A PNG file."""
    return save(picture(height, width, seed), "PNG", **options)


def png_16_bit(colour: bool) -> bytes:
    """A PNG file of 16 bits a channel; Pillow cannot write one in colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    channels, colour_type = (3, 2) if colour else (1, 0)
    line = b"\0" + bytes(range(4 * channels * 2))
    header = struct.pack(">IIBBBBB", 4, 3, 16, colour_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(line * 3)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)


def decoded(data: bytes, mode: str = "RGB") -> NDArray[np.uint8]:
    """What Pillow makes of an image file: uint8 (H, W, C)."""
    array = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
    return array if array.ndim == 3 else array[:, :, None]


def write_folder(root: Path, classes: int = 3, images: int = 5) -> Path:
    """An image folder of small JPEG files."""
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(images):
            size = (20 + 3 * number, 30 + 5 * label)
            (folder / f"{number}.jpg").write_bytes(jpeg(*size, seed=100 * label + number))
    return root
