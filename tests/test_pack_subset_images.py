"""Images of packed datasets that are packed again, as a torch Subset."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage
from torch.utils.data import Subset

import fastio
from fastio.errors import ImageError
from fastio.pack.images import ImageCodec
from fastio.packed.pixels import without_orientation
from tests.pictures import jpeg

CODECS = ("blocks", "jpeg", "raw")


def packed(source: Any, path: Path, **options: Any) -> Any:
    fastio.pack(source, path, **options)
    return fastio.open(path)


def turned_file() -> PillowImage.Image:
    """Returns a Pillow image of a file that an EXIF orientation turns, in the file's own shape."""
    image, exif = PillowImage.open(io.BytesIO(jpeg(48, 40))), PillowImage.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    return PillowImage.open(file)


@pytest.mark.parametrize("codec", ["blocks", "jpeg"])
@pytest.mark.parametrize("options", [*({"codec": each} for each in CODECS), {"quality": 90}])
def test_the_file_of_a_pillow_image_stays_as_it_was_packed(
    tmp_path: Path, codec: ImageCodec, options: dict[str, Any]
) -> None:
    data = packed([(turned_file(), 0)], tmp_path / "data", codec=codec)
    found = packed(Subset(data, [0]), tmp_path / "subset", **options)
    expected = data.image("image", 0)
    assert expected.shape == (48, 40, 3)
    pixels = found.image("image", 0)
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).mean() < 8


@pytest.mark.parametrize("codec", CODECS)
def test_pixels_are_stored_in_the_mode_of_the_schema(tmp_path: Path, codec: ImageCodec) -> None:
    gray = np.random.default_rng(0).integers(0, 256, (3, 8, 9), np.uint8)
    data = packed(
        [{"image": pixels} for pixels in gray],
        tmp_path / "data",
        schema=fastio.Schema({"image": fastio.Image("L")}, "dict"),
    )
    colour = fastio.Schema({"image": fastio.Image("RGB")}, "dict")
    found = packed(Subset(data, [2, 0]), tmp_path / "subset", schema=colour, codec=codec)
    expected = np.repeat(gray[2][..., None], 3, axis=2)
    np.testing.assert_array_equal(found.image("image", 0), expected)


def test_the_limit_of_pixels_is_that_of_the_dataset_inside(tmp_path: Path) -> None:
    path = tmp_path / "photos" / "c" / "0.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(jpeg(48, 40))
    data = packed(tmp_path / "photos", tmp_path / "data")
    for source in (fastio.open(path.parent.parent, max_pixels=100), data):
        with pytest.raises(ImageError, match="pixels"):
            fastio.pack(Subset(source, [0]), tmp_path / "few", max_pixels=1000, overwrite=True)
    few = fastio.open(path.parent.parent, max_pixels=100)
    with pytest.raises(ImageError, match="pixels"):
        fastio.pack(Subset(Subset(few, [0]), [0]), tmp_path / "limited")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("other", CODECS)
def test_lists_of_images_are_stored_as_the_files_are(
    tmp_path: Path, codec: ImageCodec, other: ImageCodec
) -> None:
    files = [[jpeg(48, 40, seed=10 * row + each) for each in range(row)] for row in range(4)]
    schema = fastio.Schema({"images": fastio.Images("RGB"), "n": fastio.Scalar("int64")}, "dict")
    samples = [{"images": some, "n": row} for row, some in enumerate(files)]
    data = packed(samples, tmp_path / "data", codec=codec, schema=schema)
    found = packed(Subset(data, [3, 0, 2]), tmp_path / "subset", codec=other)
    direct = packed(samples, tmp_path / "direct", codec=other, schema=schema)
    wanted = data if codec == "raw" else direct
    for place, row in enumerate([3, 0, 2]):
        images, expected = found.images("images", place), wanted.images("images", row)
        assert len(images) == len(expected) == row
        for index, pixels in enumerate(expected):
            np.testing.assert_array_equal(images[index], pixels)
            stored = found.stored_image("images", place, index=index)
            assert stored.codec == wanted.stored_image("images", row, index=index).codec


@pytest.mark.parametrize("options", [*({"codec": each} for each in CODECS), {"quality": 90}])
def test_pillow_images_of_lists_stay_as_they_were_packed(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    data = packed([{"images": [turned_file(), turned_file()]}], tmp_path / "data")
    found = packed(Subset(data, [0]), tmp_path / "subset", **options)
    assert [each.shape for each in data.images("images", 0)] == [(48, 40, 3)] * 2
    assert [each.shape for each in found.images("images", 0)] == [(48, 40, 3)] * 2


@pytest.mark.parametrize("codec", ["blocks", "jpeg"])
def test_exported_files_are_turned_as_the_images_are(tmp_path: Path, codec: ImageCodec) -> None:
    schema = fastio.Schema(
        {"image": fastio.Image(), "label": fastio.Scalar("int64")}, "tuple", classes=("c",)
    )
    data = packed([(turned_file(), 0)], tmp_path / "pillow", codec=codec, schema=schema)
    fastio.export(data.path, tmp_path / "export")
    exported = fastio.open(tmp_path / "export")
    pixels, expected = exported.image("image", 0), data.image("image", 0)
    assert pixels.shape == expected.shape
    # Records and files are decoded by different inverse DCTs.
    assert np.abs(pixels.astype(int) - expected).max() <= (1 if codec == "blocks" else 0)


@pytest.mark.parametrize("order", ["II", "MM"])
def test_only_the_orientation_of_a_file_is_changed(order: str) -> None:
    exif = PillowImage.Exif()
    exif[0x010F], exif[0x0112], exif[0x0131] = "maker", 8, "software"
    exif.endian = "<" if order == "II" else ">"
    data = jpeg(16, 24, exif=exif)
    assert order.encode() in data[:40]
    found = without_orientation(data)
    with PillowImage.open(io.BytesIO(found)) as image:
        assert dict(image.getexif()) == {0x010F: "maker", 0x0112: 1, 0x0131: "software"}
    assert sum(a != b for a, b in zip(found, data, strict=True)) == 1
    assert without_orientation(jpeg(16, 24)) == jpeg(16, 24)
    for end in range(len(data)):
        assert len(without_orientation(data[:end])) == end
