"""Where a dataset's files are, and that they leave the page cache."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from fastio.diagnose.probes import data as storage
from fastio.diagnose.probes.data import drop, file_system, local_files, storage_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/2.tar", "a/1.tar", "a/note.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 5000)
    return tmp_path


def test_files_of_a_folder_are_all_below_it(folder: Path) -> None:
    names = [path.relative_to(folder).as_posix() for path in local_files(folder)]
    assert names == ["a/1.tar", "a/note.txt", "b/2.tar"]


def test_files_of_patterns_lists_and_single_files(folder: Path) -> None:
    tars = [folder / "a/1.tar", folder / "b/2.tar"]
    assert local_files(f"{folder}/*/*.tar") == tars
    assert local_files([str(tar) for tar in tars]) == tars
    assert local_files(tars[0]) == tars[:1]
    assert local_files(f"{folder}/b/{{1..3}}.tar") == tars[1:]


def test_no_more_files_than_are_wanted(folder: Path) -> None:
    assert len(local_files(folder, most=2)) == 2


@pytest.mark.parametrize("data", ["https://host/data", "no/such/folder", [1, 2], object()])
def test_other_things_have_no_files_here(data: Any) -> None:
    assert local_files(data) == []


def test_dropped_files_can_be_read_again(folder: Path) -> None:
    files = local_files(folder)
    drop([*files, folder / "gone"])
    assert all(path.read_bytes() == b"x" * 5000 for path in files)


def test_a_mapped_file_is_no_obstacle(folder: Path) -> None:
    path = folder / "a/1.tar"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        drop([path])
        assert mapped[:1] == b"x"


def test_a_url_is_behind_a_network() -> None:
    assert storage_of("s3://bucket/data") == "network"
    assert storage_of(["https://host/a", "https://host/b"]) == "network"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ext4", "disk"),
        ("tmpfs", "memory"),
        ("nfs4", "network"),
        ("fuse.s3fs", "network"),
        ("fuse.sshfs", "disk"),
        ("", "disk"),
    ],
)
def test_the_file_system_tells(
    kind: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "file_system", lambda path: kind)
    assert storage_of(folder) == expected


def test_what_has_no_path_is_in_memory() -> None:
    assert storage_of(object()) == "memory"


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux")
def test_a_file_system_has_a_name() -> None:
    assert file_system(Path("/proc/self")) == "proc"
