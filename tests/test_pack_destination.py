"""A pack touches no file that is not its own, and says what keeps it from writing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fastio import Dataset as open_dataset
from fastio import DatasetExists, PackError, SchemaError, pack
from fastio.packed import MANIFEST_NAME
from tests.pictures import jpeg, write_folder
from tests.support import contents, without_ids

SMALL_SHARDS = 2500


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def test_a_dataset_is_not_replaced_unasked(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "out")
    before = contents(tmp_path / "out")
    for resume in (False, True):
        with pytest.raises(DatasetExists, match="overwrite"):
            pack([1], tmp_path / "out", resume=resume)
    assert contents(tmp_path / "out") == before


def test_overwriting_replaces_a_dataset_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "out", shard_size=SMALL_SHARDS)
    ending = ".0123456789abcdef.tmp"
    own = [f"shard-000009.arrow{ending}", f"manifest.arrow{ending}"]
    foreign = ["notes.txt", "shard-1.arrow", "shard-000001.arrow.bak", "my-shard-000001.arrow"]
    for name in own + foreign:
        (tmp_path / "out" / name).write_text(name)
    (tmp_path / "out" / "folder").mkdir()
    pack([1, 2, 3], tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "folder").rmdir()
    names = set(without_ids(contents(tmp_path / "out")))
    assert names == {MANIFEST_NAME, "shard-000000.arrow", *foreign}
    assert list(open_dataset(tmp_path / "out")) == [1, 2, 3]


def test_files_of_others_do_not_stop_a_pack(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    pack([1], tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_folders_above_the_destination_are_made(tmp_path: Path) -> None:
    pack([1], tmp_path / "a" / "b" / "c")
    assert len(open_dataset(tmp_path / "a" / "b" / "c")) == 1


def test_half_a_dataset_is_to_be_resumed_or_overwritten(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        pack([1, 2, "x"], tmp_path / "out", shard_size=8)
    with pytest.raises(PackError, match=r"incomplete.*--resume.*--overwrite"):
        pack([1, 2, 3], tmp_path / "out", shard_size=8)
    pack([1, 2, 3], tmp_path / "out", shard_size=8, overwrite=True)
    assert list(open_dataset(tmp_path / "out")) == [1, 2, 3]


def test_a_pack_that_came_to_nothing_is_just_begun_again(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        pack([1, 2, "x"], tmp_path / "out")
    assert contents(tmp_path / "out") == {}
    pack([1, 2, 3], tmp_path / "out")
    assert list(open_dataset(tmp_path / "out")) == [1, 2, 3]


@pytest.mark.parametrize("resume", [False, True])
def test_shards_without_a_journal_are_not_built_upon(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "shard-000000.arrow").write_text("")
    with pytest.raises(PackError, match="parts of a dataset"):
        pack([1], tmp_path / "out", resume=resume)


def test_a_file_is_no_destination(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(PackError, match="is a file"):
        pack([1], tmp_path / "out")


def test_a_destination_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match=r"cannot write .*file") as caught:
        pack([1], tmp_path / "file" / "out")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_destination_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(PackError, match=r"cannot write .*Permission denied"):
        pack([1], tmp_path / "out")


def test_a_full_disk_is_named_and_the_pack_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = list(range(10))
    pack(samples, tmp_path / "expected", shard_size=24)
    replace = os.replace

    def full(src: Any, dst: Any) -> None:
        if str(dst).endswith("shard-000002.arrow"):
            raise OSError(errno.ENOSPC, "No space left on device", str(src))
        replace(src, dst)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(PackError, match=r"shard-000002.*No space left.*--resume"):
            pack(samples, tmp_path / "out", shard_size=24)
    assert not list((tmp_path / "out").glob("*.tmp"))
    pack(samples, tmp_path / "out", shard_size=24, resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


@pytest.mark.parametrize("inside", ["", "out", "class0/deep/out"])
def test_a_destination_inside_the_source_is_refused(folder: Path, inside: str) -> None:
    with pytest.raises(PackError, match="is inside the source"):
        pack(folder, folder / inside)


def test_names_may_be_in_any_script(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "日本語 🎈", 1, 1)
    (folder / "größe\nnew line").mkdir()
    (folder / "größe\nnew line" / "ñ .jpg").write_bytes(jpeg())
    pack(folder, tmp_path / "aus gabe ü")
    assert open_dataset(tmp_path / "aus gabe ü").classes == ("class0", "größe\nnew line")


def test_class_names_that_are_not_utf8_come_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe")
    (tmp_path / "images" / name).mkdir(parents=True)
    (tmp_path / "images" / name / "a.jpg").write_bytes(jpeg())
    pack(tmp_path / "images", tmp_path / "out")
    assert open_dataset(tmp_path / "out").classes == (name,)
