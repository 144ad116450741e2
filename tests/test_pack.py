"""Packing gives the same bytes for the same input, and a named error for everything else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastio import Dataset as open_dataset
from fastio import (
    DatasetNotFound,
    FolderDataset,
    Image,
    ImageError,
    OptionError,
    PackError,
    SampleError,
    Scalar,
    Schema,
    SchemaError,
    SourceNotFound,
    Text,
    Writer,
    pack,
)
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
from fastio.runtime.sizes import size_in_bytes
from tests.pictures import write_folder
from tests.support import contents, descriptors, import_torchvision, until

SMALL_SHARDS = 2500


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def test_a_folder_s_files_are_packed_byte_for_byte_in_imagefolder_s_order(
    folder: Path, tmp_path: Path
) -> None:
    report = pack(folder, tmp_path / "out", codec="jpeg", shard_size=SMALL_SHARDS)
    source = FolderDataset(folder)
    with open_dataset(tmp_path / "out") as dataset:
        assert (report.rows, report.shards) == (len(dataset), dataset.num_shards)
        assert len(dataset) == 15
        assert dataset.num_shards >= 3
        assert report.bytes == dataset.manifest.nbytes
        assert report.skipped == []
        assert dataset.schema == source.schema
        assert dataset.gather("label", np.arange(15)).tolist() == source.labels.tolist()
        for row in range(15):
            shards, local = dataset.locate(np.array([row]))
            stored = dataset.shard(int(shards[0])).values("image", local)[0]
            assert stored == Path(source.paths[row]).read_bytes()
            np.testing.assert_array_equal(dataset[row][0], source[row][0])


def test_nothing_but_manifest_and_shards_is_left(folder: Path, tmp_path: Path) -> None:
    report = pack(folder, tmp_path / "out", shard_size=SMALL_SHARDS)
    names = [MANIFEST_NAME, *(f"shard-{number:06d}.arrow" for number in range(report.shards))]
    assert sorted(contents(tmp_path / "out")) == names


@pytest.mark.parametrize("codec", [None, "jpeg", "raw"])
def test_the_number_of_workers_changes_no_byte(folder: Path, tmp_path: Path, codec: Any) -> None:
    outputs = []
    for workers in (1, 2, 7):
        out = tmp_path / str(workers)
        pack(folder, out, codec=codec, workers=workers, shard_size=SMALL_SHARDS)
        outputs.append(contents(out))
    assert outputs[0] == outputs[1] == outputs[2]


def test_where_the_source_lies_and_when_it_was_written_changes_no_byte(tmp_path: Path) -> None:
    outputs = []
    for parent in ("here", "there"):
        folder = write_folder(tmp_path / parent / "images")
        os.utime(folder / "class0" / "0.jpg", (len(parent), len(parent)))
        pack(folder, tmp_path / parent / "out")
        outputs.append(contents(tmp_path / parent / "out"))
    assert outputs[0] == outputs[1]
    assert str(tmp_path).encode() not in b"".join(outputs[0].values())


def test_a_shard_is_closed_by_the_row_that_fills_it(tmp_path: Path) -> None:
    sizes = [10, 10, 30, 100, 10, 10, 10]
    with Writer(tmp_path / "out", Schema({"x": Text()}, "single"), shard_size=54) as writer:
        for size in sizes:
            writer.write("x" * size)
    dataset = open_dataset(tmp_path / "out")
    # Each string takes 8 bytes more, for its offset.
    assert dataset.manifest.shard_rows.tolist() == [3, 1, 3]


def test_the_manifest_tells_how_the_dataset_was_made(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "out", codec="raw", shard_size="1MiB")
    manifest = open_dataset(tmp_path / "out").manifest
    assert manifest.packing == {
        "codec": "raw",
        "codebook": None,
        "max_side": None,
        "quality": None,
        "shard_bytes": 1 << 20,
        "source": "images",
        "skipped": 0,
    }
    counts = {"jpeg": 0, "raw": 15, "encoded": 0, "blocks": 0}
    assert manifest.codec_counts() == {"image": counts}


def test_a_shard_describes_itself_to_any_reader(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "out")
    with pa.OSFile(str(tmp_path / "out" / "shard-000000.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    table.validate(full=True)
    assert b"format_version" in table.schema.metadata[b"fastio"]
    assert table.column("image.width").to_pylist()[:5] == [30] * 5


def test_one_sample_is_enough(tmp_path: Path) -> None:
    assert pack([7], tmp_path / "out").rows == 1
    assert open_dataset(tmp_path / "out")[0] == 7


def test_the_same_file_twice_is_two_rows(folder: Path, tmp_path: Path) -> None:
    path = str(folder / "class0" / "0.jpg")
    pack(FolderDataset.from_samples([(path, 0), (path, 1)], ["a", "b"]), tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    np.testing.assert_array_equal(dataset[0][0], dataset[1][0])


def test_a_schema_renames_a_folder_s_fields(folder: Path, tmp_path: Path) -> None:
    schema = Schema({"photo": Image("L"), "y": Scalar("int16")}, "dict")
    pack(folder, tmp_path / "out", schema=schema)
    found = open_dataset(tmp_path / "out")[5]
    assert found["photo"].shape == (20, 35, 1)
    assert found["y"].dtype == np.int16


@pytest.mark.parametrize(
    "schema", [Schema({"label": Scalar("int64")}), Schema({"a": Image(), "b": Text()})]
)
def test_a_schema_that_does_not_fit_a_folder_is_refused(
    folder: Path, tmp_path: Path, schema: Schema
) -> None:
    with pytest.raises(SchemaError, match="the schema has the field"):
        pack(folder, tmp_path / "out", schema=schema)


def test_torchvision_s_imagefolder_is_packed_as_its_files(folder: Path, tmp_path: Path) -> None:
    datasets = import_torchvision().datasets
    pack(datasets.ImageFolder(str(folder)), tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.manifest.codec_counts()["image"]["blocks"] == 15
    assert dataset.classes == ("class0", "class1", "class2")


def test_torchvision_s_imagefolder_with_transforms_is_packed_as_samples(
    folder: Path, tmp_path: Path
) -> None:
    vision = import_torchvision()
    transform = vision.transforms.v2.Resize((8, 9))
    pack(vision.datasets.ImageFolder(str(folder), transform), tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.manifest.codec_counts()["image"]["raw"] == 15
    assert dataset[0][0].shape == (8, 9, 3)
    assert dataset.classes == ("class0", "class1", "class2")


def test_torchvision_s_imagefolder_with_a_target_transform_is_packed_with_its_labels(
    folder: Path, tmp_path: Path
) -> None:
    vision = import_torchvision()
    plain = vision.datasets.ImageFolder(str(folder))
    pack(
        vision.datasets.ImageFolder(str(folder), target_transform=lambda n: n + 10), tmp_path / "o"
    )
    dataset = open_dataset(tmp_path / "o")
    assert [dataset[row][1] for row in range(15)] == [label + 10 for label in plain.targets]


def spoil(folder: Path) -> list[str]:
    """Damage three files of a folder; returns their paths in order."""
    bad = [folder / "class0" / "3.jpg", folder / "class1" / "0.jpg", folder / "class2" / "4.jpg"]
    bad[0].write_bytes(b"")
    bad[1].write_bytes(bad[1].read_bytes()[:-50])
    bad[2].unlink()
    os.symlink("/nowhere", bad[2])
    return [str(path) for path in bad]


@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_bad_file_in_order_is_named(folder: Path, tmp_path: Path, workers: int) -> None:
    bad = spoil(folder)
    with pytest.raises(ImageError, match=r"class0/3\.jpg.*0 bytes") as caught:
        pack(folder, tmp_path / "out", workers=workers)
    assert caught.value.name == bad[0]
    assert caught.value.row == 3
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(DatasetNotFound):
        open_dataset(tmp_path / "out")


def test_bad_files_are_skipped_and_reported_by_name(folder: Path, tmp_path: Path) -> None:
    bad = spoil(folder)
    report = pack(folder, tmp_path / "out", on_error="skip", shard_size=SMALL_SHARDS)
    assert [name for name, _ in report.skipped] == bad
    assert "0 bytes" in report.skipped[0][1]
    assert "No such file" in report.skipped[2][1]
    dataset = open_dataset(tmp_path / "out")
    assert report.rows == len(dataset) == 12
    assert dataset.gather("label", np.arange(12)).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.manifest.packing["skipped"] == 3


def test_packing_goes_on_after_the_bad_file_is_mended(folder: Path, tmp_path: Path) -> None:
    good = (folder / "class1" / "0.jpg").read_bytes()
    pack(folder, tmp_path / "expected", shard_size=SMALL_SHARDS)
    (folder / "class1" / "0.jpg").write_bytes(b"")
    with pytest.raises(ImageError):
        pack(folder, tmp_path / "out", shard_size=SMALL_SHARDS)
    (folder / "class1" / "0.jpg").write_bytes(good)
    pack(folder, tmp_path / "out", shard_size=SMALL_SHARDS, resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_nothing_but_bad_files_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", 1, 2)
    for path in folder.rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(PackError, match=r"all 2 samples of images are bad.*0\.jpg: .*0 bytes"):
        pack(folder, tmp_path / "out", on_error="skip")


class Faulty:
    """A dataset whose fourth sample raises, and whose sixth does not fit."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise RuntimeError("the disk is on fire")
        return ("text" if index == 5 else index, "x")


def test_a_dataset_s_own_error_is_chained_to_a_named_one(tmp_path: Path) -> None:
    with pytest.raises(
        SampleError, match=r"sample 3: the disk is on fire \(row 3 of Faulty\)"
    ) as e:
        pack(Faulty(), tmp_path / "out")
    assert isinstance(e.value.__cause__, RuntimeError)


def test_a_dataset_s_bad_samples_can_be_skipped(tmp_path: Path) -> None:
    report = pack(Faulty(), tmp_path / "out", on_error="skip")
    assert [name for name, _ in report.skipped] == ["sample 3", "sample 5"]
    assert [item[0] for item in open_dataset(tmp_path / "out")] == [0, 1, 2, 4, 6, 7]


def test_an_iterable_s_own_error_names_the_sample(tmp_path: Path) -> None:
    def samples() -> Iterator[int]:
        yield 1
        raise RuntimeError("no more")

    for on_error in ("raise", "skip"):
        with pytest.raises(SampleError, match="sample 1: no more"):
            pack(samples(), tmp_path / "out", on_error=on_error, overwrite=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [[], (), iter([]), np.empty((0, 3)), {}.values()])
def test_an_empty_source_is_an_error(tmp_path: Path, source: Any) -> None:
    with pytest.raises(PackError, match="nothing to pack"):
        pack(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_source_with_a_schema_leaves_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="nothing to pack"):
        pack(iter([]), tmp_path / "out", schema=Schema({"x": Text()}))
    assert contents(tmp_path / "out") == {}


@pytest.mark.parametrize("source", [7, None, b"bytes", {"a": 1}, object()])
def test_what_cannot_be_a_source_is_named(tmp_path: Path, source: Any) -> None:
    with pytest.raises(PackError, match=f"of type {type(source).__name__} "):
        pack(source, tmp_path / "out")


def test_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="nothing does not exist"):
        pack(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "data.xyz").write_text("")
    with pytest.raises(SourceNotFound, match=r"\.csv, \.jsonl"):
        pack(tmp_path / "data.xyz", tmp_path / "out")


def test_a_packed_dataset_is_not_packed_again(tmp_path: Path) -> None:
    pack([1], tmp_path / "one")
    for source in (tmp_path / "one", open_dataset(tmp_path / "one")):
        with pytest.raises(PackError, match="already packed"):
            pack(source, tmp_path / "two")


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "png"},
        {"shard_size": 0},
        {"shard_size": -5},
        {"shard_size": "many"},
        {"workers": 0},
        {"on_error": "ignore"},
        {"resume": True, "overwrite": True},
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        pack([1], tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (1, 1),
        ("65536", 65536),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1GB", 10**9),
        ("1.5 KiB", 1536),
        ("2k", 2000),
        ("3 B", 3),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_are_read(text: int | str, nbytes: int) -> None:
    assert size_in_bytes(text, "shard_size") == nbytes


def test_no_thread_outlives_a_pack(folder: Path, tmp_path: Path) -> None:
    before = set(threading.enumerate())  # those of other tests may end at any time
    pack(folder, tmp_path / "out", workers=5)
    (folder / "class0" / "0.jpg").write_bytes(b"")
    with pytest.raises(ImageError):
        pack(folder, tmp_path / "out", workers=5, overwrite=True)
    with pytest.raises(RuntimeError), Writer(tmp_path / "w", Schema({"i": Image()})):
        raise RuntimeError
    until(lambda: set(threading.enumerate()) <= before)


def test_no_file_descriptor_outlives_a_pack(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "warm-up")
    before = descriptors()
    pack(folder, tmp_path / "out", workers=5)
    with pytest.raises(SchemaError):
        pack([1, "x"], tmp_path / "other", shard_size=8)
    with pytest.raises(PackError):
        pack([1], tmp_path / "other")
    assert descriptors() <= before


def test_ctrl_c_stops_a_pack_that_can_be_resumed(tmp_path: Path) -> None:
    def samples(interrupt: bool) -> Iterator[int]:
        for number in range(100):
            if interrupt and number == 50:
                signal.raise_signal(signal.SIGINT)
            yield number

    pack(samples(False), tmp_path / "expected", shard_size=80)
    with pytest.raises(KeyboardInterrupt):
        pack(samples(True), tmp_path / "out", shard_size=80)
    assert (tmp_path / "out" / JOURNAL_NAME).exists()
    pack(samples(False), tmp_path / "out", shard_size=80, resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_options_that_the_source_does_not_take_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nimages/class0/0.jpg\n")
    (tmp_path / "text.txt").write_text("a text")
    text = {"tokenizer": "bytes"}
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (folder, {"max_unzipped_bytes": 1}, "a tar or a folder of .npz files, and .* is not one"),
        ([1.0, 2.0], {"max_unzipped_bytes": 1}, "a tar or a folder of .npz files"),
        (tmp_path / "list.csv", {"max_unzipped_bytes": 1}, "a tar or a folder of .npz files"),
        (tmp_path / "list.csv", {"split": "train"}, "only for datasets on the Hub"),
        (pa.table({"x": [1]}), {"split": "train"}, "a dataset on the Hugging Face Hub"),
        (pa.table({"x": [1]}), {"roots": ["."]}, "a list of images or a save_to_disk directory"),
        (FolderDataset(folder), {"config": "a"}, "is open already: pass config to fastio.open"),
        (tmp_path / "text.txt", text | {"split": "train"}, "is packed with a tokenizer"),
        (tmp_path / "text.txt", text | {"roots": ["."]}, "is packed with a tokenizer"),
        (tmp_path / "text.txt", text | {"max_unzipped_bytes": 1}, "is packed with a tokenizer"),
        (tmp_path / "text.txt", text | {"filters": [("x", ">", 1)]}, "is packed with a tokenizer"),
    ]
    for source, options, reason in refused:
        with pytest.raises(OptionError, match=reason):
            pack(source, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
