"""Images come back as files: those that were packed, where the codec lost nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import JpegImagePlugin

import fastio
from fastio import (
    Array,
    Bytes,
    Image,
    ImageError,
    PackError,
    Scalar,
    Schema,
    Text,
    Tokens,
    Writer,
    export,
    pack,
)
from fastio import Dataset as open_dataset
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def files(path: Path) -> dict[str, bytes]:
    """All files below a folder by relative path."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def originals(folder: Path) -> dict[str, bytes]:
    """What an export of a packed folder is to give: its files under the names of their rows."""
    return {
        f"{Path(name).parent}/{row:06d}.jpg": data
        for row, (name, data) in enumerate(files(folder).items())
    }


def test_a_folder_comes_back_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed", codec="jpeg", shard_size=4000)
    report = export(tmp_path / "packed", tmp_path / "out")
    assert files(tmp_path / "out") == originals(folder)
    nbytes = sum(map(len, originals(folder).values()))
    assert (report.images, report.bytes, report.index) == (15, nbytes, None)


def test_blocks_come_back_as_jpegs_of_the_same_coefficients(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    export(tmp_path / "packed", tmp_path / "out")
    expected = originals(folder)
    found = files(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, data in found.items():
        before, after = Pillow.open(io.BytesIO(expected[name])), Pillow.open(io.BytesIO(data))
        assert isinstance(before, JpegImagePlugin.JpegImageFile)
        assert isinstance(after, JpegImagePlugin.JpegImageFile)
        assert before.quantization == after.quantization
        np.testing.assert_array_equal(np.asarray(before), np.asarray(after))


def test_what_was_exported_can_be_packed_to_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    export(tmp_path / "packed", tmp_path / "out")
    pack(tmp_path / "out", tmp_path / "again")
    for first, second in zip(
        open_dataset(tmp_path / "packed"), open_dataset(tmp_path / "again"), strict=True
    ):
        assert first[1] == second[1]
        np.testing.assert_array_equal(first[0], second[0])


def packed(path: Path, fields: dict[str, Any], samples: list[dict[str, Any]], **more: Any) -> Path:
    with Writer(path / "packed", Schema(fields, "dict", **more)) as writer:
        for sample in samples:
            writer.write(sample)
    return path / "packed"


def test_every_codec_has_its_ending(tmp_path: Path) -> None:
    kinds = ("PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM")
    samples = [jpeg(), cmyk_jpeg(), *(save(picture(), kind) for kind in kinds), pixels(5, 6)]
    path = packed(tmp_path, {"image": Image()}, [{"image": data} for data in samples])
    export(path, tmp_path / "out")
    found = files(tmp_path / "out")
    endings = [name.partition(".")[2] for name in found]
    assert endings == ["jpg", "jpg", "png", "gif", "webp", "tif", "bmp", "ppm", "png"]
    assert list(found.values())[1:-1] == samples[1:-1]
    np.testing.assert_array_equal(decoded(found["000008.png"]), pixels(5, 6))


def test_tokens_are_files_of_arrays(tmp_path: Path) -> None:
    fields = {"image": Image(), "tokens": Tokens("uint16", 500)}
    tokens = [np.arange(length, dtype=np.uint16) for length in (3, 0)]
    samples = [{"image": pixels(5, 6), "tokens": each} for each in tokens]
    path = packed(tmp_path, fields, samples)
    export(path, tmp_path / "out")
    export(path, tmp_path / "tars", to="webdataset")
    with fastio.open(tmp_path / "tars") as tars:
        for row, expected in enumerate(tokens):
            found = np.load(tmp_path / "out" / f"{row:06d}.tokens.npy")
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(tars[row]["npy"], expected)
            assert found.dtype == tars[row]["npy"].dtype == np.uint16


def test_gray_pixels_are_gray_files(tmp_path: Path) -> None:
    path = packed(tmp_path, {"image": Image("L")}, [{"image": pixels(5, 6, channels=1)}])
    export(path, tmp_path / "out")
    with Pillow.open(tmp_path / "out" / "000000.png") as image:
        assert image.mode == "L"


def test_the_orientation_comes_back(tmp_path: Path) -> None:
    path = packed(tmp_path, {"image": Image()}, [{"image": oriented_jpeg(6)}])
    export(path, tmp_path / "out")
    with Pillow.open(tmp_path / "out" / "000000.jpg") as image:
        assert image.getexif()[0x0112] == 6


FIELDS = {
    "image": Image(),
    "label": Scalar("int64"),
    "weight": Scalar("float32"),
    "good": Scalar("bool"),
    "boxes": Array("float32"),
    "caption": Text(),
    "blob/1": Bytes(),
}


def rich_sample(row: int) -> dict[str, Any]:
    return {
        "image": jpeg(seed=row),
        "label": row % 2,
        "weight": np.float32(row / 3),
        "good": row == 1,
        "boxes": np.full((row, 4), row, np.float32),
        "caption": f"größe\n{row}",
        "blob/1": bytes([row]),
    }


def test_other_fields_stand_in_a_list(tmp_path: Path) -> None:
    path = packed(tmp_path, FIELDS, [rich_sample(row) for row in range(3)], classes=("cat", "dog"))
    report = export(path, tmp_path / "out")
    assert report.index == str(tmp_path / "out" / "samples.jsonl")
    lines = [json.loads(line) for line in Path(report.index).read_text().splitlines()]
    names = ["cat/000000", "dog/000001", "cat/000002"]
    for row, (line, name) in enumerate(zip(lines, names, strict=True)):
        expected = rich_sample(row)
        assert line["path"] == f"{name}.jpg"
        assert line["label"] == name[:3]
        assert np.float32(line["weight"]) == expected["weight"]
        assert (line["good"], line["caption"]) == (expected["good"], expected["caption"])
        assert line["boxes"] == f"{name}.boxes.npy"
        np.testing.assert_array_equal(np.load(tmp_path / "out" / line["boxes"]), expected["boxes"])
        assert line["blob/1"] == f"{name}.blob_1.bin"
        assert (tmp_path / "out" / line["blob/1"]).read_bytes() == expected["blob/1"]


def test_the_list_can_be_packed(tmp_path: Path) -> None:
    fields = {"image": Image(), "label": Scalar("int64"), "caption": Text()}
    samples = [
        {"image": jpeg(seed=row), "label": row % 2, "caption": f"no {row}"} for row in range(5)
    ]
    path = packed(tmp_path, fields, samples, classes=("cat", "dog"))
    report = export(path, tmp_path / "out")
    pack(report.index, tmp_path / "again")
    with open_dataset(tmp_path / "again") as dataset:
        assert dataset.classes == ("cat", "dog")
        for sample, expected in zip(dataset, open_dataset(path), strict=True):
            assert sample["caption"] == expected["caption"]
            assert sample["label"] == expected["label"]
            np.testing.assert_array_equal(sample["image"], expected["image"])


def test_a_field_called_path_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path, {"image": Image(), "path": Text()}, [{"image": jpeg(), "path": "x"}])
    with pytest.raises(PackError, match="field 'path'"):
        export(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(2, 4), [2, 3]),
        (slice(13, None), [13, 14]),
        (slice(-1, None), [14]),
        (None, range(15)),
    ],
)
def test_some_rows_keep_their_numbers(
    folder: Path, tmp_path: Path, rows: slice | None, expected: Any
) -> None:
    pack(folder, tmp_path / "packed", codec="jpeg")
    export(tmp_path / "packed", tmp_path / "out", rows=rows)
    assert [int(Path(name).stem) for name in files(tmp_path / "out")] == list(expected)


def test_no_rows_are_an_error(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    for rows, text in ((slice(15, None), "15:"), (slice(5, 3), "5:3"), (slice(9, 1, 2), "9:1:2")):
        with pytest.raises(
            PackError, match=f"rows {text} select nothing; .*packed has rows 0 to 14$"
        ):
            export(tmp_path / "packed", tmp_path / "out", rows=rows)
    assert not (tmp_path / "out").exists()


def test_any_number_of_workers_writes_the_same(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    for workers in (1, 5):
        export(tmp_path / "packed", tmp_path / str(workers), workers=workers)
    assert files(tmp_path / "1") == files(tmp_path / "5")


def test_one_of_several_image_fields_is_chosen(tmp_path: Path) -> None:
    fields = {"left": Image(), "right": Image()}
    path = packed(tmp_path, fields, [{"left": jpeg(seed=1), "right": png(seed=2)}])
    with pytest.raises(PackError, match="image fields left, right; choose one"):
        export(path, tmp_path / "out")
    export(path, tmp_path / "out", field="right")
    assert files(tmp_path / "out") == {"000000.png": png(seed=2)}
    with pytest.raises(PackError, match="no image field 'middle'"):
        export(path, tmp_path / "out", field="middle")


def test_no_images_are_an_error(tmp_path: Path) -> None:
    pack([1, 2], tmp_path / "packed")
    with pytest.raises(PackError, match="no images to export"):
        export(tmp_path / "packed", tmp_path / "out")


def test_a_folder_that_is_not_empty_is_refused(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed", codec="jpeg")
    (tmp_path / "out" / "class0").mkdir(parents=True)
    (tmp_path / "out" / "other").write_bytes(b"mine")
    (tmp_path / "out" / "class0" / "000000.jpg").write_bytes(b"old")
    with pytest.raises(PackError, match=r"not empty.*--overwrite"):
        export(tmp_path / "packed", tmp_path / "out")
    export(tmp_path / "packed", tmp_path / "out", overwrite=True)
    assert files(tmp_path / "out") == {**originals(folder), "other": b"mine"}


def test_the_dataset_itself_and_files_are_refused(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    with pytest.raises(PackError, match="the dataset itself"):
        export(tmp_path / "packed", tmp_path / "packed", overwrite=True)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PackError, match="is a file"):
        export(tmp_path / "packed", tmp_path / "file")


def test_a_damaged_image_is_named(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    with open_dataset(tmp_path / "packed") as dataset:
        reader = dataset.shard(0)
        place = reader.extent("image")[0] + int(reader.offsets("image")[7]) + 30
    shard = tmp_path / "packed" / "shard-000000.arrow"
    data = bytearray(shard.read_bytes())
    data[place] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ImageError, match=r"shard-000000\.arrow row 7: its CRC-32C") as caught:
        export(tmp_path / "packed", tmp_path / "out")
    assert caught.value.row == 7


def test_class_names_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    classes = ("../up", "a/b", "a_b", "..", "", "/etc", "\ud800", "\udcff")
    fields = {"image": Image(), "label": Scalar("int64")}
    labels = [*range(8), -1]
    samples = [{"image": png(seed=row), "label": label} for row, label in enumerate(labels)]
    path = packed(tmp_path, fields, samples, classes=classes)
    before = {name for name in files(tmp_path) if not name.startswith("out/")}
    export(path, tmp_path / "out")
    names = [".._up", "a_b", "a_b_", "_..", "_", "_etc", "?", "\udcff", "-1"]
    expected = {f"{name}/{row:06d}.png" for row, name in enumerate(names)}
    assert set(files(tmp_path / "out")) == expected
    assert {name for name in files(tmp_path) if not name.startswith("out/")} == before


def test_a_class_that_is_called_as_the_list_is_gets_another_folder(tmp_path: Path) -> None:
    fields = {"image": Image(), "label": Scalar("int64"), "weight": Scalar("float64")}
    samples = [{"image": jpeg(8, 8), "label": 0, "weight": 0.5}]
    path = packed(tmp_path, fields, samples, classes=("samples.jsonl",))
    export(path, tmp_path / "out")
    assert (tmp_path / "out" / "samples.jsonl_" / "000000.jpg").is_file()
    assert json.loads((tmp_path / "out" / "samples.jsonl").read_text())["label"] == "samples.jsonl"


def test_an_open_dataset_stays_open(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    with open_dataset(tmp_path / "packed") as dataset:
        fastio.export(dataset, tmp_path / "out", rows=slice(0, 1))
        assert dataset[0][1] == 0


def test_fields_whose_names_differ_in_a_slash_have_files_of_their_own(tmp_path: Path) -> None:
    schema = Schema({"image": Image(), "a/b": Array("int64", (2,)), "a_b": Array("int64", (2,))})
    with Writer(tmp_path / "packed", schema) as writer:
        writer.write({"image": png(8, 8), "a/b": np.array([1, 2]), "a_b": np.array([3, 4])})
    export(tmp_path / "packed", tmp_path / "out")
    line = json.loads((tmp_path / "out" / "samples.jsonl").read_text())
    found = {name: np.load(tmp_path / "out" / line[name]).tolist() for name in ("a/b", "a_b")}
    assert found == {"a/b": [1, 2], "a_b": [3, 4]}
