"""Rows to byte ranges: what datasets tell the engine to read."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio import FolderDataset
from fastio.engine.fields import ImageSource
from fastio.packed.layout import AS_STORED, LOOK_INTO_FILE, WHOLE_FILE
from fastio.schema import CODEC_BLOCKS, CODEC_ENCODED, CODEC_JPEG
from tests.pictures import jpeg, oriented_jpeg, png, write_folder


def test_the_ranges_of_a_packed_dataset_hold_the_images_bytes(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    fastio.pack(tmp_path / "images", tmp_path / "packed", codec="jpeg", shard_size=3000)
    paths = FolderDataset(tmp_path / "images").paths
    rows = np.array([14, 0, 7, 0, 8])
    with fastio.open(tmp_path / "packed") as dataset:
        assert dataset.num_shards > 3
        reads = dataset.image_reads("image", rows)
        shards, _ = dataset.locate(rows)
        for place, row in enumerate(rows.tolist()):
            begin, size = int(reads.offset[place]), int(reads.length[place])
            assert reads.file[place] == shards[place]
            data = Path(reads.path(int(reads.file[place]))).read_bytes()
            assert data[begin : begin + size] == Path(paths[row]).read_bytes()
        assert len({int(number) for number in reads.file}) == len(np.unique(shards))
        assert reads.codec.tolist() == [CODEC_JPEG] * 5


def test_sizes_and_orientations_are_those_that_were_packed(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "0.jpg").write_bytes(oriented_jpeg(6, 20, 30))
    (tmp_path / "images" / "a" / "1.png").write_bytes(png(24, 32))
    fastio.pack(tmp_path / "images", tmp_path / "packed")
    with fastio.open(tmp_path / "packed") as dataset:
        reads = dataset.image_reads("image", np.array([1, 0]))
        assert reads.orientation.tolist() == [1, 6]
        assert list(zip(reads.height, reads.width, strict=True)) == [(24, 32), (20, 30)]
        assert reads.codec.tolist() == [CODEC_ENCODED, CODEC_BLOCKS]
        assert reads.codebook is dataset.codebook
        assert reads.codebook is not None


@pytest.mark.parametrize(("upright", "orientation"), [(True, LOOK_INTO_FILE), (False, AS_STORED)])
def test_the_files_of_a_folder_are_read_whole(
    tmp_path: Path, upright: bool, orientation: int
) -> None:
    files = [(str(tmp_path / name), 0) for name in ("a.JPG", "b.png")]
    Path(files[0][0]).write_bytes(jpeg())
    Path(files[1][0]).write_bytes(png())
    dataset = FolderDataset.from_samples(files, ["x"], upright=upright)
    reads = dataset.image_reads("image", np.array([1, 0]))
    assert reads.length.tolist() == [WHOLE_FILE] * 2
    assert reads.codec.tolist() == [CODEC_ENCODED, CODEC_JPEG]
    assert reads.orientation.tolist() == [orientation] * 2


@pytest.mark.parametrize(
    ("limit", "most"), [(1024, 256), (10**6, 4096), (resource.RLIM_INFINITY, 4096)]
)
def test_shards_take_a_quarter_of_the_process_s_descriptors_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    asked = []

    class FileSet:
        def __init__(self, keep_open: bool, max_open: int, direct: bool) -> None:
            asked.append((keep_open, max_open))

    write_folder(tmp_path / "images")
    fastio.pack(tmp_path / "images", tmp_path / "packed")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    monkeypatch.setattr("fastio._native.FileSet", FileSet)
    with fastio.open(tmp_path / "packed") as dataset:
        ImageSource(dataset, "image")
    assert asked == [(True, most)]
