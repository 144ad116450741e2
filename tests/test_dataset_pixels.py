"""Stored images become upright 8-bit pixels, or an error that says why not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

from fastio.packed import decode_image, open_image
from fastio.packed.pixels import exif_orientation, turn_upright
from fastio.schema import CODEC_ENCODED, CODEC_JPEG, CODEC_RAW
from tests.pictures import cmyk_jpeg, decoded, jpeg, oriented_jpeg, pixels, png, png_16_bit


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_are_turned_as_pillow_turns_them(orientation: int) -> None:
    data = oriented_jpeg(orientation)
    found = decode_image(data, CODEC_JPEG, 24, 32, orientation, "RGB")
    with open_image(data) as image:
        turned = ImageOps.exif_transpose(image)
        assert exif_orientation(image) == orientation
    np.testing.assert_array_equal(found, np.asarray(turned))
    assert found.flags.c_contiguous


@pytest.mark.parametrize("orientation", [0, 9, -1])
def test_impossible_orientations_are_refused(orientation: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        turn_upright(pixels(3, 4), orientation)


def test_raw_pixels_are_turned_too_and_belong_to_the_caller() -> None:
    stored = pixels(4, 6)
    found = decode_image(stored.tobytes(), CODEC_RAW, 4, 6, 6, "RGB")
    np.testing.assert_array_equal(found, np.rot90(stored, -1))
    found[:] = 0


def test_raw_pixels_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="72 bytes, found 71"):
        decode_image(bytes(71), CODEC_RAW, 4, 6, 1, "RGB")


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_files_come_in_the_mode_asked_for(mode: Any) -> None:
    for data in (jpeg(), png(), cmyk_jpeg()):
        found = decode_image(data, CODEC_ENCODED, 0, 0, 1, mode)
        np.testing.assert_array_equal(found, decoded(data, mode))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_eight_bit_modes_become_rgb(mode: str, tmp_path: Path) -> None:
    kind = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    Pillow.fromarray(pixels(8, 9)).convert(mode).save(tmp_path / "a", kind)
    found = decode_image((tmp_path / "a").read_bytes(), CODEC_ENCODED, 0, 0, 1, "RGB")
    assert found.shape == (8, 9, 3)


def test_a_palette_with_transparency_becomes_rgb_without_a_warning(tmp_path: Path) -> None:
    image = Pillow.fromarray(pixels(8, 9)).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    found = decode_image((tmp_path / "a.png").read_bytes(), CODEC_ENCODED, 0, 0, 1, "RGB")
    np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))


def deep_images() -> dict[str, bytes]:
    """Files of more than 8 bits a channel, by a name each."""
    gray = Pillow.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4))
    files = {"gray PNG": png_16_bit(False), "colour PNG": png_16_bit(True)}
    files["colour PPM"] = b"P6\n2 2\n65535\n" + bytes(24)
    for name, image in {"gray": gray, "float": Pillow.new("F", (3, 4))}.items():
        buffer = io.BytesIO()
        image.save(buffer, "TIFF")
        files[f"{name} TIFF"] = buffer.getvalue()
    return files


def open_whole(data: bytes) -> None:
    """Opens an image, and does nothing with it."""
    with open_image(data):
        pass


@pytest.mark.parametrize("name", deep_images())
def test_more_than_eight_bits_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="more than 8 bits a channel"):
        open_whole(deep_images()[name])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"just some text", "Pillow knows"),
        (png()[:-200], "cannot be decoded"),
        (jpeg()[:-200], "cannot be decoded"),
    ],
)
def test_bad_files_have_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_whole(data)


def test_nonsense_in_exif_is_upright() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 77
    with open_image(jpeg(exif=exif)) as image:
        assert exif_orientation(image) == 1
    broken = jpeg(exif=b"Exif\0\0" + b"\xff" * 20)
    with open_image(broken) as image:
        assert exif_orientation(image) == 1
