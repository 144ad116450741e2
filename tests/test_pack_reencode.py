"""Images are made smaller only where that is asked for, and keep what belongs to them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import JpegImagePlugin

from fastio import Dataset as open_dataset
from fastio import Image, ImageError, OptionError, Schema, Writer, pack
from fastio.pack.images import reencode, shrink
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


def opened(data: bytes) -> Pillow.Image:
    return Pillow.open(io.BytesIO(data))


def sampling(data: bytes) -> int:
    return int(JpegImagePlugin.get_sampling(opened(data)))


def quantisers(quality: int) -> Any:
    return opened(jpeg(quality=quality)).quantization  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [jpeg(30, 40), png(30, 40), cmyk_jpeg(), oriented_jpeg(6)])
def test_what_is_small_enough_stays_as_it_is(data: bytes) -> None:
    assert reencode(data, 40, None) is data


@pytest.mark.parametrize(
    ("height", "width", "size"), [(90, 60, (40, 60)), (60, 90, (60, 40)), (601, 3, (1, 60))]
)
def test_the_longer_side_is_shrunk_in_proportion(
    height: int, width: int, size: tuple[int, int]
) -> None:
    assert opened(reencode(jpeg(height, width), 60, None)).size == size


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((100, 100, 3), np.uint8)
    stripes[:, ::2] = 255
    assert abs(int(shrink(stripes, 50)[20:30, 20:30].mean()) - 127) <= 1


def test_a_shrunk_file_has_quality_90_unless_told_otherwise() -> None:
    data = jpeg(60, 90, quality=50)
    assert opened(reencode(data, 60, None)).quantization == quantisers(90)  # type: ignore[attr-defined]
    assert opened(reencode(data, 60, 70)).quantization == quantisers(70)  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [jpeg(60, 90), png(60, 90), save(picture(60, 90), "WEBP")])
def test_a_quality_makes_every_file_a_jpeg_of_its_size(data: bytes) -> None:
    found = opened(reencode(data, None, 70))
    assert (found.format, found.size) == ("JPEG", (90, 60))
    assert found.quantization == quantisers(70)  # type: ignore[attr-defined]


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_the_subsampling_is_that_of_the_source(subsampling: int) -> None:
    assert sampling(reencode(jpeg(60, 90, subsampling=subsampling), 60, None)) == subsampling


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_is_kept(kind: str, orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    data = save(picture(60, 90), kind, exif=exif)
    found = opened(reencode(data, 60, None))
    assert found.size == (60, 40)
    assert found.getexif().get(0x0112, 1) == orientation


@pytest.mark.parametrize(
    ("mode", "kept"), [("RGB", True), ("L", True), ("P", True), ("RGBA", True), ("CMYK", False)]
)
def test_the_colour_profile_is_kept_where_it_still_fits(mode: str, kept: bool) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    data = save(picture(60, 90).convert(mode), kind, icc_profile=b"profile")
    found = opened(reencode(data, 60, None)).info.get("icc_profile")
    assert found == (b"profile" if kept else None)


@pytest.mark.parametrize(
    ("mode", "expected"), [("L", "L"), ("1", "L"), ("LA", "L"), ("P", "RGB"), ("RGBA", "RGB")]
)
def test_gray_stays_gray_and_transparency_is_dropped(mode: str, expected: str) -> None:
    data = save(picture(60, 90).convert(mode), "PNG")
    assert opened(reencode(data, 60, None)).mode == expected


BAD = {
    "a JPEG with a hole": jpeg(90, 90)[:1500] + b"\xff\xc4" * 150 + jpeg(90, 90)[1800:],
    "half a JPEG": jpeg(90, 90)[:2000],
    "half a PNG": png(90, 90)[:2000],
    "16 bits": png_16_bit(True),
    "empty": b"",
    "text": b"text",
}


@pytest.mark.parametrize("options", [{"max_side": 3}, {"quality": 80}])
@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_as_ever(tmp_path: Path, name: str, options: Any) -> None:
    with (
        pytest.raises(ImageError),
        Writer(tmp_path / "out", Schema({"image": Image()}), **options) as writer,
    ):
        writer.write({"image": BAD[name]})


@pytest.mark.parametrize(
    ("codec", "counts"),
    [("blocks", (0, 0, 0, 4)), ("jpeg", (3, 0, 1, 0)), ("raw", (0, 4, 0, 0))],
)
def test_every_codec_stores_the_smaller_image(tmp_path: Path, codec: Any, counts: Any) -> None:
    samples = [jpeg(60, 90), jpeg(90, 60, progressive=True), png(60, 91), oriented_jpeg(6, 20, 40)]
    if codec == "jpeg":
        samples[3] = png(20, 40)
    pack(samples, tmp_path / "out", codec=codec, max_side=40)
    with open_dataset(tmp_path / "out") as dataset:
        assert tuple(dataset.manifest.codec_counts()["image"].values()) == counts
        sizes = [image.shape[:2] for image in dataset]
        turned = (20, 40) if codec == "jpeg" else (40, 20)
        assert sizes == [(27, 40), (40, 27), (26, 40), turned]
        assert dataset.manifest.packing["max_side"] == 40


def test_the_smaller_image_looks_as_the_large_one_does(tmp_path: Path) -> None:
    data = jpeg(240, 320, quality=95, subsampling=0)
    pack([data], tmp_path / "out", max_side=160)
    expected = opened(data).resize((160, 120), Pillow.Resampling.LANCZOS)
    found = open_dataset(tmp_path / "out")[0]
    assert np.abs(found.astype(int) - np.asarray(expected)).mean() < 4


def test_pixels_are_shrunk_and_stay_pixels(tmp_path: Path) -> None:
    samples = [pixels(60, 90), pixels(20, 40)]
    pack(samples, tmp_path / "arrays", max_side=40)
    pack([picture(60, 90)], tmp_path / "pillow", max_side=40)
    with open_dataset(tmp_path / "arrays") as dataset:
        assert dataset[0].shape == (27, 40, 3)
        np.testing.assert_array_equal(dataset[1], samples[1])
        assert dataset.manifest.codec_counts()["image"]["raw"] == 2
    np.testing.assert_array_equal(
        open_dataset(tmp_path / "pillow")[0], shrink(np.asarray(picture(60, 90)), 40)
    )


def test_gray_pixels_can_be_shrunk() -> None:
    assert shrink(pixels(60, 90, channels=1), 30).shape == (20, 30, 1)


def test_nothing_is_lost_unasked(tmp_path: Path) -> None:
    data = jpeg(60, 90)
    pack([data], tmp_path / "out", codec="jpeg")
    np.testing.assert_array_equal(open_dataset(tmp_path / "out")[0], decoded(data))


@pytest.mark.parametrize(
    "options",
    [
        {"max_side": 0},
        {"quality": 0},
        {"quality": 101},
        {"quality": 90, "codec": "raw"},
        {"codec": "png"},
    ],
)
def test_impossible_wishes_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        pack([jpeg()], tmp_path / "out", **options)
