"""Packed datasets as tars: for the webdataset package and for a Loader."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Array, Bytes, Image, ImageError, OptionError, PackError, Scalar, Schema, Text
from fastio.pack.exporters import extensions
from fastio.schema import Field
from tests.pictures import jpeg, png, write_folder
from tests.tars import webdataset_samples, write_tars


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def packed(path: Path, fields: dict[str, Field], samples: list[dict[str, Any]]) -> Path:
    with fastio.Writer(path / "packed", Schema(fields)) as writer:
        for sample in samples:
            writer.write(sample)
    return path / "packed"


def test_tars_come_back_as_they_were_packed(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars")
    fastio.pack(tmp_path / "tars", tmp_path / "packed")
    report = fastio.export(
        tmp_path / "packed", tmp_path / "out", to="webdataset", shard_size=40_000
    )
    assert (report.images, report.index) == (30, None)
    assert report.tars == len(files(tmp_path / "out")) > 2
    before = webdataset_samples(str(tmp_path / "tars" / "train-{000..002}.tar"), "rgb8")
    names = [str(tmp_path / "out" / name) for name in files(tmp_path / "out")]
    for one, other in zip(before, webdataset_samples(names, "rgb8"), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)


def test_a_folder_comes_back_through_tars_with_its_pixels_and_labels(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    fastio.pack(tmp_path / "images", tmp_path / "packed")
    fastio.export(tmp_path / "packed", tmp_path / "out", to="webdataset")
    with (
        fastio.Loader(tmp_path / "out", 15, num_workers=2) as loader,
        fastio.Dataset(tmp_path / "packed") as dataset,
    ):
        (batch,) = loader
        assert batch["__key__"] == [f"{row:06d}" for row in range(15)]
        for row, (image, label) in enumerate(dataset):
            own = batch["jpg"][row].permute(1, 2, 0).numpy().astype(int)
            assert np.abs(own - image).max() <= 1
            assert int(batch["cls"][row]) == label


def test_fields_have_extensions_that_say_what_they_hold(tmp_path: Path) -> None:
    fields: dict[str, Field] = {
        "image": Image(),
        "label": Scalar("int64"),
        "caption": Text(),
        "boxes": Array("float32"),
        "weight": Scalar("float64"),
        "mask": Bytes(),
    }
    sample = {
        "image": jpeg(),
        "label": 3,
        "caption": "a cät",
        "boxes": np.ones((2, 4), np.float32),
        "weight": 0.5,
        "mask": b"\0\1",
    }
    path = packed(tmp_path, fields, [sample])
    fastio.export(path, tmp_path / "out", to="webdataset")
    (found,) = webdataset_samples(str(tmp_path / "out" / "000000.tar"), "rgb8")
    assert list(found) == ["__key__", "jpg", "cls", "txt", "npy", "json", "mask"]
    assert found["__key__"] == "000000"
    assert (found["cls"], found["txt"], found["json"], found["mask"]) == (3, "a cät", 0.5, b"\0\1")
    np.testing.assert_array_equal(found["npy"], sample["boxes"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"a": Image(), "b": Image()}, ["a.image", "b.image"]),
        ({"jpg": Image(), "seg_png": Image()}, ["image", "seg.image"]),
        ({"jpg;png": Image()}, ["image"]),
        ({"label": Scalar("int64"), "id": Scalar("int32")}, ["cls", "id"]),
        ({"class": Scalar("int64"), "size": Scalar("int64")}, ["cls", "size.cls"]),
        ({"size": Scalar("int64")}, ["cls"]),
        ({"flag": Scalar("bool"), "x": Scalar("float32")}, ["flag.json", "x.json"]),
        ({"json": Text(), "caption": Text()}, ["json", "txt"]),
        ({"txt": Text(), "caption": Text()}, ["txt", "caption.txt"]),
        ({"emb_npy": Array("int8"), "a": Array("int8")}, ["emb.npy", "npy"]),
        ({"w_npy": Scalar("float32")}, ["w.npy"]),
        ({"png": Bytes(), "a/b": Bytes(), "pkl": Bytes()}, ["png.bin", "a_b.bin", "pkl"]),
        ({"A": Text(), "a": Text()}, ["a.txt", "a_.txt"]),
    ],
)
def test_names_of_fields_become_extensions(fields: dict[str, Field], expected: list[str]) -> None:
    found = [".".join(filter(None, parts)) for parts in extensions(fields).values()]
    assert found == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["a", "dir/b", "ü" * 80], ["a", "dir/b", "ü" * 80]),
        (["a", "a", "a"], ["a", "000001", "a"]),
        (["", "x.y", "__x__"], ["000000", "000001", "__x__"]),
        (["/etc/x", "../x", "__x__/y"], ["000000", "000001", "000002"]),
        (["nul\0", "line\nbreak", "dots.in/x"], ["000000", "line\nbreak", "dots.in/x"]),
    ],
)
def test_keys_are_those_of_the_dataset_where_they_can_be(
    tmp_path: Path, keys: list[str], expected: list[str]
) -> None:
    fields: dict[str, Field] = {"__key__": Text(), "cls": Scalar("int64")}
    samples = [{"__key__": key, "cls": n} for n, key in enumerate(keys)]
    fastio.export(packed(tmp_path, fields, samples), tmp_path / "out", to="webdataset")
    found = webdataset_samples(str(tmp_path / "out" / "000000.tar"), "rgb8")
    assert [sample["__key__"] for sample in found] == expected
    assert [sample["cls"] for sample in found] == [0, 1, 2]
    assert [s["__key__"] for s in fastio.open(tmp_path / "out" / "000000.tar")] == expected


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    write_tars(tmp_path / "tars")
    fastio.pack(tmp_path / "tars", tmp_path / "packed")
    for name, workers in (("one", 1), ("two", 4)):
        fastio.export(
            tmp_path / "packed",
            tmp_path / name,
            to="webdataset",
            shard_size="30kB",
            workers=workers,
        )
    assert files(tmp_path / "one") == files(tmp_path / "two")
    with tarfile.open(tmp_path / "one" / "000000.tar") as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, 0, "", "")}


def test_images_of_several_formats_are_one_field_when_read(tmp_path: Path) -> None:
    path = packed(tmp_path, {"image": Image()}, [{"image": jpeg()}, {"image": png()}])
    fastio.export(path, tmp_path / "out", to="webdataset")
    assert list(fastio.open(tmp_path / "out").schema.fields) == ["__key__", "jpg;png"]


def test_rows_and_the_image_field_can_be_chosen(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"left": Image(), "right": Image(), "n": Scalar("int64")}
    samples = [{"left": jpeg(seed=n), "right": jpeg(seed=n + 9), "n": n} for n in range(5)]
    path = packed(tmp_path, fields, samples)
    fastio.export(path, tmp_path / "out", to="webdataset", field="right", rows=slice(2, 4))
    found = webdataset_samples(str(tmp_path / "out" / "000000.tar"))
    assert [list(sample) for sample in found] == [["__key__", "jpg", "cls"]] * 2
    assert [(sample["__key__"], sample["cls"]) for sample in found] == [
        ("000002", b"2"),
        ("000003", b"3"),
    ]


def test_a_dataset_without_images_can_be_exported(tmp_path: Path) -> None:
    path = packed(tmp_path, {"x": Scalar("float64")}, [{"x": float("nan")}, {"x": 2.0}])
    report = fastio.export(path, tmp_path / "out", to="webdataset")
    assert (report.images, report.bytes, report.tars) == (0, 0, 1)
    np.testing.assert_array_equal(
        fastio.open(tmp_path / "out").gather("json", np.array([0, 1])), [np.nan, 2.0]
    )


def test_an_export_that_is_replaced_leaves_no_tars_behind(tmp_path: Path) -> None:
    path = packed(tmp_path, {"cls": Scalar("int64")}, [{"cls": n} for n in range(9)])
    fastio.export(path, tmp_path / "out", to="webdataset", shard_size=1)
    assert len(files(tmp_path / "out")) == 9
    (tmp_path / "out" / "mine.tar").touch()
    with pytest.raises(PackError, match="is not empty"):
        fastio.export(path, tmp_path / "out", to="webdataset")
    fastio.export(path, tmp_path / "out", to="webdataset", overwrite=True)
    assert sorted(os.listdir(tmp_path / "out")) == ["000000.tar", "mine.tar"]


def test_a_damaged_row_leaves_no_half_tar(tmp_path: Path) -> None:
    samples = [{"image": jpeg(seed=n)} for n in range(3)]
    path = packed(tmp_path, {"image": Image()}, samples)
    shard = next(path.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    with fastio.Dataset(path) as dataset:
        stored = dataset.stored_image("image", 2).data.tobytes()
    data[data.index(stored) + len(stored) - 50] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ImageError, match="row 2"):
        fastio.export(path, tmp_path / "out", to="webdataset")
    assert os.listdir(tmp_path / "out") == []


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    path = packed(tmp_path, {"cls": Scalar("int64")}, [{"cls": 1}])
    with pytest.raises(OptionError, match="to must be"):
        fastio.export(path, tmp_path / "out", to="parquet")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not a size"):
        fastio.export(path, tmp_path / "out", to="webdataset", shard_size="big")
    with pytest.raises(PackError, match="no images"):
        fastio.export(path, tmp_path / "out", to="webdataset", field="cls")
    assert not (tmp_path / "out").exists()


def test_a_key_that_is_the_number_of_the_next_row_is_not_given_twice(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"__key__": Text(), "txt": Text()}
    keys = ["000001", "not.a.key", "000001_", "b"]
    source = packed(tmp_path, fields, [{"__key__": key, "txt": key} for key in keys])
    fastio.export(source, tmp_path / "out", to="webdataset")
    with tarfile.open(tmp_path / "out" / "000000.tar") as tar:
        names = tar.getnames()
    assert len(set(names)) == len(keys)
    assert names[0] == "000001.txt"
