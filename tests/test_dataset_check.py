"""Decoding everything finds the images that are not what was packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import Dataset as open_dataset
from fastio import Image, Scalar, Schema, Writer
from fastio.pack.images import ImageCell
from fastio.packed import check_images
from fastio.packed.check import BadImage
from tests.pictures import cmyk_jpeg, jpeg, pixels, png

SAMPLES = [jpeg(40, 60), jpeg(41, 61, progressive=True), cmyk_jpeg(), png(), pixels(6, 7)]


def write(path: Path, codec: Any = "blocks", rounds: int = 40) -> Path:
    """A dataset of every kind of image, in several shards."""
    schema = Schema({"image": Image(), "row": Scalar("int64")}, "tuple")
    with Writer(path, schema, codec=codec, shard_size=100_000) as writer:
        for row in range(rounds * len(SAMPLES)):
            writer.write((SAMPLES[row % len(SAMPLES)], row))
    return path


def found(path: Path, workers: int = 2) -> list[BadImage]:
    with open_dataset(path) as dataset:
        checks = list(check_images(dataset, workers))
        assert sum(check.rows for check in checks) == len(dataset)
        return [bad for check in checks for bad in check.bad]


def flip(path: Path, row: int, at: int) -> tuple[str, int]:
    """Flip a bit of a row's image; its shard's name and its row there."""
    with open_dataset(path) as dataset:
        (shard,), (local,) = (numbers.tolist() for numbers in dataset.locate(np.array([row])))
        reader = dataset.shard(shard)
        name = dataset.manifest.name(shard)
        begin, end = reader.offsets("image")[local : local + 2].tolist()
        place = reader.extent("image")[0] + begin + at % (end - begin)
    data = bytearray((path / name).read_bytes())
    data[place] ^= 16
    (path / name).write_bytes(data)
    return name, local


@pytest.mark.parametrize("codec", ["blocks", "jpeg", "raw"])
def test_a_whole_dataset_has_no_bad_images(tmp_path: Path, codec: Any) -> None:
    assert found(write(tmp_path / "out", codec)) == []


@pytest.mark.parametrize("codec", ["blocks", "jpeg"])
@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_flipped_bit_in_any_image_is_found(tmp_path: Path, codec: Any, at: int) -> None:
    path = write(tmp_path / "out", codec)
    rows = [3, 70, 140, 141, 142, 199]
    places = [flip(path, row, at) for row in rows]
    bad = found(path)
    assert [item.row for item in bad] == rows
    assert [(item.shard, item.local_row) for item in bad] == places
    assert len({item.shard for item in bad}) > 1
    assert {item.field for item in bad} == {"image"}
    assert all("CRC-32C" in item.problem for item in bad)


def test_any_number_of_workers_finds_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "out")
    for row in (5, 150):
        flip(path, row, 50)
    assert found(path, 1) == found(path, 7)


def test_images_of_a_shard_that_cannot_be_opened_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "out")
    flip(path, 199, 0)
    (path / "shard-000000.arrow").write_bytes(b"")
    assert [item.row for item in found(path)] == [199]
    with open_dataset(path) as dataset:
        counts = [check.not_decoded for check in check_images(dataset)]
        assert sum(counts) == dataset.manifest.shard_rows[0]


def test_what_the_checksum_does_not_cover_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty writer: its checksums hold, and its columns tell another size."""
    from fastio.pack import cells

    encode = cells.encode_file

    def lying(*arguments: Any) -> ImageCell:
        cell = encode(*arguments)
        return cell._replace(height=cell.height + 1)

    monkeypatch.setattr(cells, "encode_file", lying)
    for codec in ("blocks", "jpeg"):
        path = write(tmp_path / codec, codec, rounds=1)
        problems = [item.problem for item in found(path)]
        assert problems[0] == "it is 40 x 60, expected 41 x 60"
        assert len(problems) == 4
