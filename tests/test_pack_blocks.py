"""JPEGs become block records by default, and come back as they were."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import JpegImagePlugin

import fastio
from fastio import Dataset as open_dataset
from fastio import Image, ImageError, OptionError, PackError, Schema, Writer, _native, pack
from fastio.pack.images import (
    ImageOptions,
    choose_codebook,
    codebook_hash,
    encode_file,
)
from fastio.packed import decode_image
from fastio.packed.codebook import open_codebook
from fastio.schema import CODEC_BLOCKS, CODEC_ENCODED
from tests.pictures import (
    cmyk_jpeg,
    decoded,
    jpeg,
    oriented_jpeg,
    picture,
    pixels,
    png,
    save,
    write_folder,
)

RGB = Image("RGB")
DEFAULT_CODEBOOK = choose_codebook(None).data or b""
BLOCKS = ImageOptions("blocks", open_codebook(DEFAULT_CODEBOOK))

JPEGS = {
    "baseline": jpeg(),
    "progressive": jpeg(50, 70, progressive=True),
    "4:4:4 of quality 100": jpeg(quality=100, subsampling=0),
    "4:2:2": jpeg(33, 47, subsampling=1),
    "4:2:0": jpeg(33, 47, subsampling=2),
    "larger than a tile": jpeg(150, 333, subsampling=2),
    "a pixel": jpeg(1, 1),
    "RGB": jpeg(keep_rgb=True),
    "gray": save(picture().convert("L"), "JPEG"),
    "rubbish after the end": jpeg() + b"rubbish",
}


def upright(data: bytes) -> Any:
    """What Pillow makes of a JPEG file, turned as its EXIF orientation says."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(Pillow.open(io.BytesIO(data)))
    return np.asarray(image.convert("RGB"))


def check_alike(found: Any, expected: Any) -> None:
    """The planes are libjpeg's to the bit; colours are rounded once more, or once less."""
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_becomes_a_block_record_of_the_same_pixels(name: str) -> None:
    data = JPEGS[name]
    cell = encode_file(data, RGB, BLOCKS)
    expected = decoded(data)
    assert cell[1:5] == (CODEC_BLOCKS, *expected.shape[:2], 1)
    check_alike(decode_image(*cell[:5], "RGB", BLOCKS.codebook), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_blocks_stands_beside_them(orientation: int) -> None:
    data = oriented_jpeg(orientation)
    cell = encode_file(data, RGB, BLOCKS)
    assert cell[1:5] == (CODEC_BLOCKS, 24, 32, orientation)
    check_alike(decode_image(*cell[:5], "RGB", BLOCKS.codebook), upright(data))


@pytest.mark.parametrize("name", JPEGS)
def test_blocks_in_a_gray_field_are_gray(name: str) -> None:
    data = JPEGS[name]
    cell = encode_file(data, Image("L"), BLOCKS)
    found = decode_image(*cell[:5], "L", BLOCKS.codebook)
    assert found.shape == decoded(data, "L").shape
    assert np.abs(found.astype(int) - decoded(data, "L")).max() <= 2


def test_the_checksum_is_that_of_the_whole_record() -> None:
    cell = encode_file(jpeg(), RGB, BLOCKS)
    assert cell.crc32c == _native.crc32c(np.frombuffer(cell.data, np.uint8))


@pytest.mark.parametrize("data", [cmyk_jpeg(), png()])
def test_what_blocks_cannot_hold_is_kept_as_it_is(data: bytes) -> None:
    assert encode_file(data, RGB, BLOCKS)[:5] == (data, CODEC_ENCODED, 24, 32, 1)


def test_the_record_has_the_file_s_coefficients_and_profile() -> None:
    data = jpeg(40, 60, icc_profile=b"profile", comment=b"said", progressive=True)
    cell = encode_file(data, RGB, BLOCKS)
    assert BLOCKS.codebook is not None
    again = _native.blocks_export(np.frombuffer(cell.data, np.uint8), BLOCKS.codebook)
    with Pillow.open(io.BytesIO(again)) as image, Pillow.open(io.BytesIO(data)) as original:
        assert isinstance(image, JpegImagePlugin.JpegImageFile)
        assert isinstance(original, JpegImagePlugin.JpegImageFile)
        assert image.quantization == original.quantization
        assert image.info["icc_profile"] == b"profile"
        assert image.info["comment"] == b"said"
    np.testing.assert_array_equal(decoded(again), decoded(data))


MIXED = [
    jpeg(60, 90, seed=1),
    jpeg(61, 91, seed=2, progressive=True),
    jpeg(62, 92, seed=3, keep_rgb=True),
    save(picture(63, 93).convert("L"), "JPEG"),
    oriented_jpeg(6, 64, 94),
    cmyk_jpeg(),
    png(65, 95, seed=4),
]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A shard with rows of every codec but "jpeg"."""
    with Writer(tmp_path / "mixed", Schema({"image": RGB}, "single")) as writer:
        for data in MIXED:
            writer.write(data)
        writer.write(pixels(20, 30))
    return tmp_path / "mixed"


def expected_images() -> list[Any]:
    return [*(upright(data) for data in MIXED), pixels(20, 30)]


def test_a_shard_mixes_blocks_with_what_they_cannot_hold(mixed: Path) -> None:
    with open_dataset(mixed) as dataset:
        counts = dataset.manifest.codec_counts()["image"]
        assert counts == {"jpeg": 0, "raw": 1, "encoded": 2, "blocks": 5}
        for found, expected in zip(dataset, expected_images(), strict=True):
            check_alike(found, expected)


def test_a_loader_delivers_every_codec_of_a_shard(mixed: Path) -> None:
    with fastio.Loader(mixed, 8, transforms=[], num_workers=2) as loader:
        (batch,) = loader
    for found, expected in zip(batch, expected_images(), strict=True):
        check_alike(found.permute(1, 2, 0).numpy(), expected)


def test_a_loader_crops_blocks_as_it_crops_jpegs(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    crops = []
    for codec in ("blocks", "jpeg"):
        pack(folder, tmp_path / codec, codec=codec)  # type: ignore[arg-type]
        steps = [fastio.RandomResizedCrop(16), fastio.RandomHorizontalFlip()]
        with fastio.Loader(tmp_path / codec, 15, transforms=steps, seed=5) as loader:
            ((images, labels),) = loader
        crops.append((images.double(), labels))
    assert (crops[0][0] - crops[1][0]).abs().mean() < 1
    assert (crops[0][1] == crops[1][1]).all()


@pytest.mark.parametrize("at_least", [1, 24, 25, 50, 51, 100, 200, 201])
def test_thumbnails_come_smaller_but_not_too_small(tmp_path: Path, at_least: int) -> None:
    data = jpeg(100, 200, subsampling=0)
    pack([data], tmp_path / "out")
    with open_dataset(tmp_path / "out") as dataset:
        small = dataset.image("image", 0, at_least=at_least)
    shrunk = {1: 8, 24: 8, 25: 8, 50: 4, 51: 2, 100: 2}.get(at_least, 1)
    with Pillow.open(io.BytesIO(data)) as image:
        image.draft("RGB", (200 // shrunk, 100 // shrunk))
        check_alike(small, np.asarray(image))


def test_a_thumbnail_does_not_read_the_rest_of_its_record(tmp_path: Path) -> None:
    pack([jpeg(200, 300, quality=98)], tmp_path / "out")
    with open_dataset(tmp_path / "out") as dataset:
        expected = dataset.image("image", 0, at_least=10)
        reader = dataset.shard(0)
        end = reader.extent("image")[0] + int(reader.offsets("image")[1])
    shard = tmp_path / "out" / "shard-000000.arrow"
    data = bytearray(shard.read_bytes())
    data[end - 100 : end] = bytes(100)
    shard.write_bytes(data)
    with open_dataset(tmp_path / "out") as dataset:
        np.testing.assert_array_equal(dataset.image("image", 0, at_least=10), expected)
        for larger in (100, 200):
            with pytest.raises(ImageError):
                dataset.image("image", 0, at_least=larger)


# --- The codebook --------------------------------------------------------------------------------


def other_codebook(path: Path) -> bytes:
    """A codebook file that is not the default one: two of its classes changed places."""
    data = DEFAULT_CODEBOOK[:65] + DEFAULT_CODEBOOK[130:195] + DEFAULT_CODEBOOK[65:130]
    data += DEFAULT_CODEBOOK[195:]
    path.write_bytes(data)
    return data


def test_the_manifest_holds_the_codebook(tmp_path: Path) -> None:
    data = other_codebook(tmp_path / "book")
    pack([jpeg()], tmp_path / "default")
    pack([jpeg()], tmp_path / "file", codebook=tmp_path / "book")
    for name, expected in (("default", DEFAULT_CODEBOOK), ("file", data)):
        with open_dataset(tmp_path / name) as dataset:
            assert dataset.manifest.codebook == expected
            assert dataset.manifest.packing["codebook"] == name
            assert dataset.codebook is dataset.codebook
            assert dataset.codebook is not None
            assert dataset.codebook.data == expected
            check_alike(dataset[0], decoded(jpeg()))


@pytest.mark.parametrize("sample", [png(), 7])
def test_a_dataset_without_blocks_has_no_codebook(tmp_path: Path, sample: Any) -> None:
    pack([sample], tmp_path / "out")
    with open_dataset(tmp_path / "out") as dataset:
        assert dataset.manifest.codebook is None
        assert dataset.codebook is None
        assert dataset.manifest.packing["codebook"] is None


@pytest.mark.parametrize("content", [b"", bytes(16_639), b"\xff" * 16_640, None])
def test_a_file_that_is_no_codebook_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "book").write_bytes(content)
    with pytest.raises(PackError, match=r"book is not a codebook: .*tools/train_codebook"):
        pack([jpeg()], tmp_path / "out", codebook=tmp_path / "book")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_a_codebook_for_another_codec_is_refused(tmp_path: Path, codec: Any) -> None:
    with pytest.raises(OptionError, match="codebooks can only be used with codec='blocks'"):
        pack([jpeg()], tmp_path / "out", codec=codec, codebook="train")


def test_a_trained_codebook_is_the_same_for_the_same_source(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    for name, workers in (("a", 1), ("b", 2)):
        pack(folder, tmp_path / name, codebook="train", workers=workers)
    found = [(tmp_path / name / "manifest.arrow").read_bytes() for name in "ab"]
    assert found[0] == found[1]
    with open_dataset(tmp_path / "a") as dataset:
        assert dataset.manifest.packing["codebook"] == "trained"
        assert dataset.manifest.codebook != DEFAULT_CODEBOOK
        check_alike(dataset[0][0], decoded((folder / "class0" / "0.jpg").read_bytes()))


def sources(folder: Path) -> Iterator[Any]:
    files = sorted(folder.glob("*/*.jpg"))
    listed = folder.parent / "list.csv"
    listed.write_text("path\n" + "".join(f"{path}\n" for path in files))
    yield from (folder, listed, [path.read_bytes() for path in files])


def test_codebooks_are_trained_on_folders_lists_and_datasets(tmp_path: Path) -> None:
    hashes = set()
    for number, source in enumerate(sources(write_folder(tmp_path / "images"))):
        pack(source, tmp_path / str(number), codebook="train")
        hashes.add(codebook_hash(open_dataset(tmp_path / str(number)).manifest.codebook or b""))
    assert len(hashes) == 1


def test_training_passes_over_what_is_no_sound_jpeg(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", 1, 3)
    for name, data in {
        "a.jpg": b"",
        "b.png": png(),
        "c.jpg": jpeg()[:-50],
        "d.jpg": cmyk_jpeg(),
    }.items():
        (folder / "class0" / name).write_bytes(data)
    report = pack(folder, tmp_path / "out", codebook="train", on_error="skip")
    assert (report.rows, len(report.skipped)) == (5, 2)


@pytest.mark.parametrize("samples", [[png()], [7]])
def test_nothing_to_train_on_is_an_error(tmp_path: Path, samples: list[Any]) -> None:
    with pytest.raises(PackError, match="a codebook cannot be trained"):
        pack(samples, tmp_path / "out", codebook="train")
    pack(samples, tmp_path / "out")


def test_what_can_be_read_once_only_is_not_trained_on(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"generator.*only once"):
        pack((data for data in [jpeg()]), tmp_path / "out", codebook="train")
    with pytest.raises(OptionError, match="cannot train a codebook"):
        Writer(tmp_path / "out", Schema({"image": RGB}), codebook="train")
    assert not list(tmp_path.glob("out/*"))


def test_a_damaged_record_is_an_error_that_names_its_row(tmp_path: Path) -> None:
    pack([jpeg(seed=1), jpeg(seed=2)], tmp_path / "out")
    shard = tmp_path / "out" / "shard-000000.arrow"
    with open_dataset(tmp_path / "out") as dataset:
        reader = dataset.shard(0)
        place = reader.extent("image")[0] + int(reader.offsets("image")[2]) - 300
    data = bytearray(shard.read_bytes())
    data[place] ^= 4
    shard.write_bytes(data)
    with open_dataset(tmp_path / "out") as dataset:
        dataset[0]
        with pytest.raises(ImageError, match=r"shard-000000\.arrow row 1: its CRC-32C"):
            dataset[1]
    with (
        fastio.Loader(tmp_path / "out", 2) as loader,
        pytest.raises(ImageError, match=r"shard-000000\.arrow row 1"),
    ):
        next(iter(loader))


def test_blocks_without_a_codebook_are_an_error() -> None:
    cell = encode_file(jpeg(), RGB, BLOCKS)
    with pytest.raises(ValueError, match="no codebook"):
        decode_image(*cell[:5], "RGB")


def test_an_unknown_codec_is_an_error() -> None:
    with pytest.raises(ValueError, match="codec 9"):
        decode_image(b"", 9, 1, 1, 1, "RGB")
