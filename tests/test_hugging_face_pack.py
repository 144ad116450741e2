"""Packing datasets of the datasets package: images, tables, interruptions, the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Image, load_from_disk
from typer.testing import CliRunner

import fastio
from fastio import ImageError, PackError, SchemaError, SourceNotFound, pack
from fastio.cli import main
from fastio.schema import CODEC_BLOCKS, CODEC_JPEG, CODEC_RAW
from tests.pictures import jpeg
from tests.saved import (
    NAMES,
    image_dataset,
    image_rows,
    jpeg_bytes,
    save_to,
    table_dataset,
)
from tests.support import contents, packing_ends_after

SHARD = 2000


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A directory of 12 JPEGs."""
    return save_to(image_dataset(), tmp_path / "saved", num_shards=2)


@pytest.mark.parametrize(
    ("codec", "stored"), [("jpeg", CODEC_JPEG), ("raw", CODEC_RAW), ("blocks", CODEC_BLOCKS)]
)
def test_images_are_stored_as_those_of_a_folder(
    codec: Any, stored: int, saved: str, tmp_path: Path
) -> None:
    report = pack(saved, tmp_path / "packed", codec=codec)
    assert (report.rows, report.skipped) == (12, [])
    with fastio.open(tmp_path / "packed") as packed:
        for row, sample in enumerate(image_rows(12)):
            image = packed.stored_image("image", row)
            assert image.codec == stored
            if codec == "jpeg":
                assert image.data.tobytes() == jpeg_bytes(row)
            assert packed[row]["label"] == sample["label"]
            assert packed[row]["caption"] == sample["caption"]
            assert packed[row]["boxes"].tolist() == sample["boxes"]
            wanted = np.array(load_from_disk(saved)[row]["image"])
            found = packed.image("image", row).astype(int)
            assert abs(found - wanted).max() <= (2 if codec == "blocks" else 0)
        assert packed.classes == tuple(NAMES)
        assert packed.schema.vocabularies == {"label": tuple(NAMES)}


def test_files_of_an_open_dataset_are_kept(saved: str, tmp_path: Path) -> None:
    with fastio.open(saved) as opened:
        pack(opened, tmp_path / "opened")
    pack(saved, tmp_path / "folder")
    with fastio.open(tmp_path / "opened") as found, fastio.open(tmp_path / "folder") as wanted:
        assert found.manifest.codec_counts() == wanted.manifest.codec_counts()
        assert found.stored_image("image", 1).crc32c == wanted.stored_image("image", 1).crc32c


def test_images_are_shrunk_and_columns_chosen(saved: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_side": 16, "columns": ["label", "image"]}
    pack(saved, tmp_path / "packed", dtypes={"label": "int8"}, **options)
    with fastio.open(tmp_path / "packed") as packed:
        assert list(packed.schema.fields) == ["label", "image"]
        assert max(packed[0]["image"].shape) == 16
        assert packed[0]["label"].dtype == np.int8


@pytest.mark.parametrize("make", [image_dataset, table_dataset])
def test_the_bytes_are_the_same_for_any_workers_and_way_of_reading(
    make: Callable[[], Dataset], tmp_path: Path
) -> None:
    dataset = make()
    folder = save_to(dataset, tmp_path / "Dataset", num_shards=3)
    sources = [dataset, load_from_disk(folder), folder]
    for number, source in enumerate(sources):
        for workers in (1, 4):
            out = tmp_path / f"{number} {workers}"
            pack(source, out, shard_size=SHARD, workers=workers)
            assert contents(out) == contents(tmp_path / "0 1")


def test_selected_rows_are_packed(tmp_path: Path) -> None:
    chosen = image_dataset().shuffle(seed=4).select(range(2, 7))
    pack(chosen, tmp_path / "packed")
    with fastio.open(tmp_path / "packed") as packed:
        assert [sample["caption"] for sample in packed] == chosen["caption"][:]


def test_a_table_is_packed_as_rows_with_its_class_names(tmp_path: Path) -> None:
    dataset = table_dataset()
    pack(
        save_to(dataset, tmp_path / "saved"), tmp_path / "packed", groups={"x": ["score", "number"]}
    )
    with fastio.open(tmp_path / "packed") as packed:
        assert packed.schema.records
        assert packed.schema.vocabularies == {"label": tuple(NAMES)}
        for row, sample in enumerate(packed):
            assert sample["text"] == dataset[row]["text"]
            assert sample["list"].tolist() == dataset[row]["list"]
            assert sample["vector"].tolist() == dataset[row]["vector"]
            assert sample["x"].tolist() == [dataset[row]["score"], row]


def test_filtered_rows_of_a_table_are_packed(tmp_path: Path) -> None:
    pack(table_dataset(), tmp_path / "packed", filters=[("label", "=", 2)])
    with fastio.open(tmp_path / "packed") as packed:
        assert [sample["number"] for sample in packed] == list(range(2, 100, 3))
    with pytest.raises(PackError, match="a dataset that has images"):
        pack(image_dataset(), tmp_path / "images", filters=[("label", "=", 2)])


def interrupt(source: Any, out: Path) -> None:
    """Packs two shards of a source."""
    with pytest.raises(KeyboardInterrupt), packing_ends_after(2):
        pack(source, out, shard_size=SHARD)


@pytest.mark.parametrize("as_object", [True, False])
def test_an_interrupted_pack_goes_on(as_object: bool, saved: str, tmp_path: Path) -> None:
    source = load_from_disk(saved) if as_object else saved
    pack(source, tmp_path / "expected", shard_size=SHARD)
    interrupt(source, tmp_path / "out")
    pack(source, tmp_path / "out", shard_size=SHARD, resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_a_pack_does_not_go_on_with_another_dataset(saved: str, tmp_path: Path) -> None:
    interrupt(load_from_disk(saved), tmp_path / "out")
    other = load_from_disk(saved).select(range(11, -1, -1))
    with pytest.raises(PackError, match="has changed since"):
        pack(other, tmp_path / "out", shard_size=SHARD, resume=True)


def broken(tmp_path: Path) -> Dataset:
    """A good image, one without anything, one without its file, and a null."""
    images = [
        {"bytes": jpeg_bytes(0), "path": None},
        {"bytes": None, "path": None},
        {"bytes": None, "path": str(tmp_path / "gone.jpg")},
        {"bytes": jpeg(20, 30), "path": None},
    ]
    dataset = Dataset.from_dict({"image": images, "n": [1, 2, 3, None]})
    return dataset.cast_column("image", Image())


def test_bad_rows_stop_a_pack_or_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="neither bytes nor a path") as caught:
        pack(broken(tmp_path), tmp_path / "first")
    assert caught.value.row == 1
    report = pack(broken(tmp_path), tmp_path / "second", on_error="skip")
    assert report.rows == 1
    assert [name.rpartition(" ")[2] for name, _ in report.skipped] == ["1", "2", "3"]


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    dataset = table_dataset(3)
    with pytest.raises(SourceNotFound, match="several splits"):
        pack(DatasetDict(train=dataset), tmp_path / "out")
    with pytest.raises(SourceNotFound, match="without streaming=True"):
        pack(dataset.to_iterable_dataset(), tmp_path / "out")
    with pytest.raises(SourceNotFound, match="has no rows"):
        pack(dataset.select([]), tmp_path / "out")
    with pytest.raises(SchemaError, match="whose features"):
        pack(dataset, tmp_path / "out", schema=fastio.Schema({"number": fastio.Scalar("int64")}))
    dataset.set_transform(lambda batch: batch)
    with pytest.raises(PackError, match="set_transform"):
        pack(dataset, tmp_path / "out")


def test_files_of_their_own_are_packed(tmp_path: Path) -> None:
    for row in range(3):
        (tmp_path / f"{row}.jpg").write_bytes(jpeg_bytes(row))
    paths = [str(tmp_path / f"{row}.jpg") for row in range(3)]
    dataset = Dataset.from_dict({"image": paths}, features=Features({"image": Image()}))
    pack(dataset, tmp_path / "packed", codec="jpeg")
    with fastio.open(tmp_path / "packed") as packed:
        stored = [packed.stored_image("image", row).data.tobytes() for row in range(3)]
    assert stored == [jpeg_bytes(row) for row in range(3)]


def test_the_command_packs_directories(saved: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pack", saved, str(tmp_path / "packed"), "--quiet"])
    assert done.exit_code == 0, done.output
    tables = save_to(table_dataset(), tmp_path / "tables")
    options = ["--columns", "number,list", "--dtype", "number=float32", "--quiet"]
    done = CliRunner().invoke(main, ["pack", tables, str(tmp_path / "table"), *options])
    assert done.exit_code == 0, done.output
    with fastio.open(tmp_path / "packed") as packed, fastio.open(tmp_path / "table") as table:
        assert (len(packed), len(table)) == (12, 100)
        assert table[7]["number"] == 7.0


def test_a_codebook_is_trained_on_its_images(saved: str, tmp_path: Path) -> None:
    report = pack(saved, tmp_path / "packed", codebook="train")
    assert report.rows == 12
