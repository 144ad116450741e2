"""What is stored for an image is its file, or its pixels, or an error that says why neither."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from fastio import Dataset as open_dataset
from fastio import Image, ImageError, Schema, Writer, pack
from fastio.pack.images import (
    ImageCodec,
    ImageOptions,
    choose_codebook,
    encode_file,
    encode_pillow,
    encode_pixels,
    taken,
)
from fastio.packed.codebook import open_codebook
from fastio.packed.pixels import is_image_file
from fastio.schema import CODEC_ENCODED, CODEC_JPEG, CODEC_RAW
from tests.pictures import (
    cmyk_jpeg,
    decoded,
    jpeg,
    oriented_jpeg,
    picture,
    pixels,
    png,
    png_16_bit,
    save,
)

RGB = Image("RGB")
GRAY = Image("L")
BLOCKS = ImageOptions("blocks", open_codebook(choose_codebook(None).data or b""))
JPEG = ImageOptions("jpeg")
RAW = ImageOptions("raw")


@pytest.mark.parametrize(
    "data",
    [
        jpeg(),
        jpeg(progressive=True),
        jpeg(quality=100, subsampling=0),
        jpeg(subsampling=2),
        jpeg(1, 1),
        jpeg(keep_rgb=True),
        save(picture().convert("L"), "JPEG"),
        jpeg() + b"rubbish after the end",
    ],
)
def test_jpeg_files_are_kept_byte_for_byte(data: bytes) -> None:
    cell = encode_file(data, RGB, JPEG)
    image = decoded(data)
    assert cell[:5] == (data, CODEC_JPEG, image.shape[0], image.shape[1], 1)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_other_files_are_kept_byte_for_byte_for_pillow(kind: str) -> None:
    data = save(picture(), kind)
    assert encode_file(data, RGB, JPEG)[:5] == (data, CODEC_ENCODED, 24, 32, 1)


def test_a_jpeg_of_four_components_is_left_to_pillow() -> None:
    data = cmyk_jpeg()
    assert encode_file(data, RGB, JPEG)[:5] == (data, CODEC_ENCODED, 24, 32, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_kept_beside_the_size_as_stored(orientation: int) -> None:
    cell = encode_file(oriented_jpeg(orientation), RGB, JPEG)
    assert cell[1:5] == (CODEC_JPEG, 24, 32, orientation)
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    cell = encode_file(save(picture(), "PNG", exif=exif), RGB, JPEG)
    assert cell[1:5] == (CODEC_ENCODED, 24, 32, orientation)


@pytest.mark.parametrize("make", [jpeg, png, cmyk_jpeg])
@pytest.mark.parametrize("field", [RGB, GRAY])
def test_raw_pixels_are_those_that_pillow_decodes(make: Callable[[], bytes], field: Image) -> None:
    cell = encode_file(make(), field, RAW)
    assert cell[1:5] == (CODEC_RAW, 24, 32, 1)
    found = np.frombuffer(cell.data, np.uint8).reshape(24, 32, field.channels)
    np.testing.assert_array_equal(found, decoded(make(), field.mode))


def test_raw_pixels_are_upright() -> None:
    cell = encode_file(oriented_jpeg(6), RGB, RAW)
    assert cell[1:5] == (CODEC_RAW, 32, 24, 1)
    found = np.frombuffer(cell.data, np.uint8).reshape(32, 24, 3)
    np.testing.assert_array_equal(found, np.rot90(decoded(oriented_jpeg(6)), -1))


BAD_FILES = {
    "empty": (b"", "0 bytes"),
    "text": (b"<html>not found</html>", "Pillow knows"),
    "half a JPEG": (jpeg()[: len(jpeg()) // 2], "."),
    "a JPEG without its last byte": (jpeg()[:-2], "."),
    "a JPEG's first bytes": (jpeg()[:20], "."),
    "a JPEG with a hole": (jpeg(90, 90)[:1500] + b"\xff\xc4" * 150 + jpeg(90, 90)[1800:], "."),
    "half a PNG": (png()[: len(png()) // 2], "cannot be decoded"),
    "half a CMYK JPEG": (cmyk_jpeg()[: len(cmyk_jpeg()) // 2], "."),
    "16-bit gray": (png_16_bit(False), "more than 8 bits"),
    "16-bit colour": (png_16_bit(True), "more than 8 bits"),
}


@pytest.mark.parametrize("options", [BLOCKS, JPEG, RAW])
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_have_a_reason(name: str, options: ImageOptions) -> None:
    data, reason = BAD_FILES[name]
    with pytest.raises(ValueError, match=reason):
        encode_file(data, RGB, options)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_pillow_images_of_eight_bits_become_pixels(mode: str) -> None:
    image = picture().convert(mode)
    cell = encode_pillow(image, RGB, JPEG)
    assert cell[1:5] == (CODEC_RAW, 24, 32, 1)
    assert cell.data == np.asarray(image.convert("RGB")).tobytes()


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_deeper_pillow_images_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="more than 8 bits"):
        encode_pillow(Pillow.new(mode, (3, 4)), RGB, JPEG)


def test_colour_does_not_become_gray_unasked() -> None:
    assert encode_pillow(picture().convert("L"), GRAY, JPEG).height == 24
    with pytest.raises(ValueError, match="mode 'RGB' in a gray field"):
        encode_pillow(picture(), GRAY, JPEG)


@pytest.mark.parametrize("data", [jpeg(), jpeg(progressive=True), png(), save(picture(), "GIF")])
def test_an_opened_image_is_stored_as_its_file(data: bytes) -> None:
    image = Pillow.open(io.BytesIO(data))
    for options in (BLOCKS, JPEG):
        assert encode_pillow(taken(image), RGB, options) == encode_file(data, RGB, options)
    assert np.array_equal(np.asarray(image.convert("RGB")), decoded(data))  # it can still be read


def test_an_opened_image_is_delivered_as_pillow_has_it(tmp_path: Path) -> None:
    class Photos:  # as people write them; Pillow does not turn photos upright
        def __len__(self) -> int:
            return 9

        def __getitem__(self, row: int) -> Pillow.Image:
            return Pillow.open(io.BytesIO(oriented_jpeg(row)))

    pack(Photos(), tmp_path / "packed", codec="jpeg")
    with open_dataset(tmp_path / "packed") as dataset:
        for row in range(9):
            assert bytes(dataset.stored_image("image", row).data) == oriented_jpeg(row)
            assert np.array_equal(dataset[row], np.asarray(Photos()[row]))


def drafted() -> Pillow.Image:
    image = Pillow.open(io.BytesIO(jpeg(64, 48)))
    image.draft("RGB", (16, 12))
    return image


def drafted_gray() -> Pillow.Image:
    image = Pillow.open(io.BytesIO(jpeg()))
    image.draft("L", image.size)
    return image


def decoded_and_changed() -> Pillow.Image:
    image = Pillow.open(io.BytesIO(jpeg()))
    image.putpixel((0, 0), (255, 0, 0))
    return image


def second_frame() -> Pillow.Image:
    file = io.BytesIO()
    gray = Pillow.new("L", (8, 6), 90)
    picture().save(file, "TIFF", save_all=True, append_images=[gray.convert("RGB")])
    image = Pillow.open(file)
    image.seek(1)
    return image


@pytest.mark.parametrize("made", [drafted, drafted_gray, decoded_and_changed, second_frame])
def test_an_image_that_is_not_its_file_is_stored_as_pixels(made: Callable[[], Any]) -> None:
    cell = encode_pillow(taken(made()), RGB, BLOCKS)
    assert cell.codec == CODEC_RAW
    assert cell.data == np.asarray(made().convert("RGB")).tobytes()


def test_the_codec_raw_stores_an_opened_image_as_pillow_has_it() -> None:
    cell = encode_pillow(taken(Pillow.open(io.BytesIO(oriented_jpeg(6)))), RGB, RAW)
    assert cell.codec == CODEC_RAW
    assert cell.data == np.asarray(Pillow.open(io.BytesIO(oriented_jpeg(6)))).tobytes()


def test_a_pillow_image_of_a_truncated_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png()[:-100])
    with Pillow.open(tmp_path / "a.png") as image, pytest.raises(ImageError, match="decoded"):
        pack([image], tmp_path / "packed", codec="jpeg")


class OfOneThread(io.BytesIO):
    """A file that only the thread that made it may read."""

    thread = threading.get_ident()

    def read(self, size: int | None = -1, /) -> bytes:
        assert threading.get_ident() == self.thread
        return super().read(size)


@pytest.mark.parametrize("codec", ["blocks", "jpeg", "raw"])
@pytest.mark.parametrize("draft", [None, (16, 12)])
def test_an_image_of_several_samples_is_read_by_one_thread(
    tmp_path: Path, codec: ImageCodec, draft: tuple[int, int] | None
) -> None:
    image = Pillow.open(OfOneThread(jpeg(64, 48)))
    if draft is not None:
        image.draft("RGB", draft)
    pack([image] * 40, tmp_path / "packed", codec=codec, workers=4)
    stored = "raw" if draft else codec
    with open_dataset(tmp_path / "packed") as dataset:
        assert dataset.manifest.codec_counts()["image"][stored] == 40


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 4), (4, 5, 1), (0, 5, 3), (1, 4, 5, 3), (60,)])
def test_pixels_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected uint8"):
        encode_pixels(np.zeros(shape, np.uint8), RGB)


def test_pixels_of_another_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        encode_pixels(np.zeros((4, 5, 3), np.float32), RGB)


def test_gray_pixels_need_no_axis_for_channels() -> None:
    stored = pixels(4, 5, channels=1)
    assert encode_pixels(stored[:, :, 0], GRAY) == encode_pixels(stored, GRAY)


def test_pixels_in_any_memory_order_are_stored_row_by_row() -> None:
    stored = pixels(4, 5)
    for view in (np.asfortranarray(stored), stored[::-1, ::2], stored.swapaxes(0, 1)):
        assert encode_pixels(view, RGB).data == view.tobytes()


def test_image_files_are_told_by_how_they_begin() -> None:
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "AVIF", "BMP"):
        assert is_image_file(save(picture(), kind)), kind
    for data in (b"", b"RIFF1234WAVE", b"text", b"\xff\xd8", bytes(20)):
        assert not is_image_file(data)


def test_what_was_packed_is_what_comes_back(tmp_path: Path) -> None:
    """Every codec but blocks in one dataset."""
    files = [jpeg(seed=1), png(seed=2), cmyk_jpeg(), oriented_jpeg(5), oriented_jpeg(1)]
    with Writer(tmp_path / "out", Schema({"image": RGB}, "single"), codec="jpeg") as writer:
        for data in files:
            writer.write(data)
        writer.write(pixels(5, 6))
        writer.write(picture(seed=9))
    with open_dataset(tmp_path / "out") as dataset:
        counts = dataset.manifest.codec_counts()
        assert counts == {"image": {"jpeg": 3, "raw": 2, "encoded": 2, "blocks": 0}}
        for row, data in enumerate(files):
            expected = decoded(data)
            if row == 3:
                expected = expected.swapaxes(0, 1)
            np.testing.assert_array_equal(dataset[row], expected)
        np.testing.assert_array_equal(dataset[5], pixels(5, 6))
        np.testing.assert_array_equal(dataset[6], np.asarray(picture(seed=9)))


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    data = bytearray(png())
    data[16:24] = struct.pack(">II", 20_000, 20_000)  # the header's size and, behind it, its CRC
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with (
        pytest.raises(ImageError, match=r"400000000 pixels.*max_pixels"),
        Writer(tmp_path / "out", Schema({"image": RGB}, "single")) as writer,
    ):
        writer.write(bytes(data))


def test_every_image_gets_the_checksum_of_its_stored_bytes() -> None:
    data = jpeg()
    assert encode_file(data, RGB, JPEG).crc32c == crc32c_by_the_book(data)
    pixels = encode_pixels(np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3), RGB)
    assert pixels.crc32c == crc32c_by_the_book(pixels.data)


def test_the_checksum_is_the_one_that_others_know() -> None:
    assert crc32c_by_the_book(b"123456789") == 0xE3069283  # the published check value


def crc32c_by_the_book(data: bytes) -> int:
    """CRC-32C bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF
