"""Generated photos of a given file size, for a preset that is measured without data."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastio.diagnose.options import Preset
from fastio.errors import OptionError
from fastio.pack import pack
from fastio.packed import is_dataset

_CLASSES = 10
_PHOTOS = 32  # different photos; further files are links to them
_QUALITY = 92
_BYTES_A_PIXEL = 0.55  # as in ImageNet's photos


def synthetic(preset: Preset, work: Path, count: int) -> tuple[Path, Path]:
    """Makes an image folder with JPEGs of the preset's mean size, and packs it.

    Args:
        preset: a preset whose samples are images.
        work: folder in which `photos-NAME-COUNT` and `packed-NAME-COUNT` are made. They are kept,
            and used again.
        count: number of photos.

    Returns:
        The folders of the photos and of the packed dataset.

    Raises:
        OptionError: the preset's samples are not images.
    """
    if preset.kind != "image":
        raise OptionError(
            f"data can only be made for image presets, and {preset.name} is for "
            f"{preset.kind}s: give your own data"
        )
    photos, packed = work / f"photos-{preset.name}-{count}", work / f"packed-{preset.name}-{count}"
    if not is_dataset(packed):  # nor a half-written one, of a run that was interrupted
        for number in range(min(count, _PHOTOS)):
            path = _file(photos, number)
            path.write_bytes(jpeg_of_size(preset.record_bytes, number))
        for number in range(_PHOTOS, count):
            path = _file(photos, number)
            path.unlink(missing_ok=True)  # of an earlier run that was interrupted
            path.symlink_to(_file(photos, number % _PHOTOS).resolve())
        pack(photos, packed, overwrite=True)
    return photos, packed


def _file(folder: Path, number: int) -> Path:
    path = folder / f"class_{number % _CLASSES:02}" / f"{number:06}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def jpeg_of_size(nbytes: int, seed: int) -> bytes:
    """Returns a JPEG (3:4, 4:2:0) with a photo's spectrum, within 5% of a number of bytes."""
    # The number of pixels is that of a photo with so many bytes. The contrast is then fitted to
    # reach the size.
    height = round((nbytes / _BYTES_A_PIXEL * 3 / 4) ** 0.5)
    pixels = _noise(height, height * 4 // 3, seed)
    low, high = 0.0, 4.0  # bounds of the contrast; the size of the file grows with it
    data = b""
    for _ in range(12):
        contrast = (low + high) / 2
        data = _encoded(pixels, contrast)
        if abs(len(data) - nbytes) <= 0.05 * nbytes:
            break
        low, high = (contrast, high) if len(data) < nbytes else (low, contrast)
    return data


def _noise(height: int, width: int, seed: int) -> npt.NDArray[np.float32]:
    """Returns noise (H, W, 3) with amplitudes 1 / frequency and a little white noise."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    amplitude = 1 / np.maximum(frequency, 1 / max(height, width))
    phases = np.fft.rfft2(rng.standard_normal((3, height, width)))
    planes = np.fft.irfft2(phases * amplitude, s=(height, width))
    planes *= 0.4 / planes.std(axis=(1, 2), keepdims=True)
    planes += rng.standard_normal((height, width)) * 0.1
    return np.moveaxis(planes, 0, -1).astype(np.float32)


def _encoded(pixels: npt.NDArray[np.float32], contrast: float) -> bytes:
    brightness = pixels[..., :1] + pixels * 0.5
    image = np.clip(128 + 60 * contrast * brightness, 0, 255).astype(np.uint8)
    out = BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=_QUALITY, subsampling="4:2:0")
    return out.getvalue()
