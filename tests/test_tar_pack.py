"""Tars as a source of a pack."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Image, PackError, SampleError, Scalar, Schema, SchemaError, TarDataset
from fastio.pack import units
from tests.pictures import jpeg
from tests.tars import write_tar, write_tars


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    write_tars(tmp_path / "tars")
    return tmp_path / "tars"


def assert_same(first: Any, second: Any) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if isinstance(value, np.ndarray) and value.dtype == np.uint8:
                value = value.astype(int)  # blocks are rounded otherwise than by libjpeg
                assert np.abs(value - other[name]).max() <= 1
            else:
                np.testing.assert_array_equal(other[name], value)


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("codec", ["blocks", "jpeg"])
def test_the_samples_are_those_of_the_tars(tars: Path, tmp_path: Path, codec: Any) -> None:
    report = fastio.pack(tars, tmp_path / "packed", codec=codec, shard_size=20_000)
    assert (report.rows, report.skipped) == (15, [])
    assert report.shards > 2
    with fastio.Dataset(tmp_path / "packed") as packed, TarDataset(tars) as dataset:
        assert packed.schema == dataset.schema
        assert packed.classes is None
        assert packed.manifest.packing["source"] == "tars"
        assert_same(packed, dataset)


def test_a_pattern_a_list_and_a_dataset_can_be_packed(tars: Path, tmp_path: Path) -> None:
    names = [str(path) for path in sorted(tars.iterdir())]
    sources = [f"{tars}/train-{{000..002}}.tar", names, TarDataset(tars)]
    for number, source in enumerate(sources):
        assert fastio.pack(source, tmp_path / f"packed{number}").rows == 15
    assert fastio.pack(names[1], tmp_path / "one").rows == 4


def test_images_are_stored_byte_for_byte(tars: Path, tmp_path: Path) -> None:
    fastio.pack(tars, tmp_path / "packed", codec="jpeg")
    with fastio.Dataset(tmp_path / "packed") as packed, TarDataset(tars) as dataset:
        for row in range(15):
            for name in ("jpg", "seg_png"):
                assert packed.stored_image(name, row).data.tobytes() == dataset.read(name, row)


def test_a_schema_chooses_fields(tars: Path, tmp_path: Path) -> None:
    schema = Schema({"jpg": Image("L"), "cls": Scalar("uint8")}, "tuple", ("a", "b", "c", "d"))
    fastio.pack(tars, tmp_path / "packed", schema=schema)
    with fastio.Dataset(tmp_path / "packed") as packed:
        image, label = packed[6]
        assert image.shape == (31, 40, 1)
        assert (label, label.dtype) == (2, np.uint8)
    for field in ("none", "txt"):
        with pytest.raises(SchemaError, match=field):
            fastio.pack(tars, tmp_path / "other", schema=Schema({field: Image()}))


def test_samples_that_lack_a_field_are_bad_ones(tmp_path: Path) -> None:
    members = [("a.jpg", jpeg()), ("a.cls", b"1"), ("b.jpg", jpeg()), ("c.cls", b"3")]
    members += [("d.jpg", b"no image"), ("d.cls", b"4"), ("e.jpg", jpeg()), ("e.cls", b"cat")]
    path = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(SampleError, match=r"x\.tar sample 'b': it has no \.cls"):
        fastio.pack(path, tmp_path / "packed")
    report = fastio.pack(path, tmp_path / "packed", on_error="skip")
    assert report.rows == 1
    reasons = [(name[-3:], reason[:16]) for name, reason in report.skipped]
    assert reasons == [
        ("'b'", "it has no .cls"),
        ("'c'", "it has no .jpg"),
        ("'d'", "not an image of "),
        ("'e'", "its .cls holds n"),
    ]


def test_an_interrupted_pack_goes_on(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastio.pack(tars, tmp_path / "whole", shard_size=20_000)
    write_shard = units.write_shard
    calls: list[Path] = []

    def fail_at_third(path: Path, *given: Any) -> Any:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(5, "Input/output error", str(path))
        return write_shard(path, *given)

    monkeypatch.setattr(units, "write_shard", fail_at_third)
    with pytest.raises(PackError, match="Input/output error"):
        fastio.pack(tars, tmp_path / "packed", shard_size=20_000)
    fastio.pack(tars, tmp_path / "packed", shard_size=20_000, resume=True)
    assert files(tmp_path / "packed") == files(tmp_path / "whole")
    calls.clear()
    with pytest.raises(PackError):
        fastio.pack(tars, tmp_path / "again", shard_size=20_000)
    time_ns = os.stat(tars / "train-000.tar").st_mtime_ns + 1_000_000_000
    os.utime(tars / "train-000.tar", ns=(time_ns, time_ns))
    with pytest.raises(PackError, match="has changed since"):
        fastio.pack(tars, tmp_path / "again", shard_size=20_000, resume=True)


def test_a_codebook_is_trained_on_the_images_of_tars(tars: Path, tmp_path: Path) -> None:
    fastio.pack(tars, tmp_path / "packed", codebook="train")
    with fastio.Dataset(tmp_path / "packed") as packed:
        assert packed.manifest.packing["codebook"] == "trained"


def test_a_dataset_is_not_packed_to_the_folder_of_its_tars(tars: Path) -> None:
    with pytest.raises(PackError, match="is inside the source"):
        fastio.pack(tars, tars / "packed")
