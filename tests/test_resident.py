"""Which pieces are in the cache, as `SeenPieces` knows it without looking at each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastio.stage import cached
from fastio.stage.cached import SeenPieces


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders that are listed from here on; every question is a look."""
    monkeypatch.setattr(cached, "_LOOK_S", 0.0)
    done: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (done.append(path), listdir(path))[1])
    return done


def pieces(folder: Path, count: int) -> tuple[SeenPieces, list[str]]:
    folder.mkdir()
    found = SeenPieces()
    paths = [str(folder / str(number)) for number in range(count)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(b"x")
        found.add(path, number)
    return found, paths


def age(folder: Path) -> None:
    """As if the last change were long ago."""
    os.utime(folder, ns=(1, 1))


def test_only_what_was_added_is_there(tmp_path: Path) -> None:
    found, paths = pieces(tmp_path / "0", 2)
    assert found.find(0) == paths[0]
    assert found.find(2) is None
    found.discard(0)
    assert found.find(0) is None
    found.clear()
    assert found.find(1) is None


def test_what_others_delete_is_noticed(tmp_path: Path, looks: list[str]) -> None:
    found, paths = pieces(tmp_path / "0", 3)
    os.unlink(paths[1])
    assert [found.find(number) for number in range(3)] == [paths[0], None, paths[2]]
    assert looks


def test_a_folder_that_does_not_change_is_listed_once(tmp_path: Path, looks: list[str]) -> None:
    found, paths = pieces(tmp_path / "0", 3)
    age(tmp_path / "0")
    for _ in range(5):
        assert found.find(0) == paths[0]
    assert len(looks) == 1
    os.unlink(paths[0])
    assert found.find(0) is None


def test_a_change_within_the_clocks_tick_is_noticed(tmp_path: Path, looks: list[str]) -> None:
    found, paths = pieces(tmp_path / "0", 3)
    assert found.find(2) == paths[2]
    changed = os.stat(tmp_path / "0").st_mtime_ns
    os.unlink(paths[2])
    os.utime(tmp_path / "0", ns=(changed, changed))
    assert found.find(2) is None


def test_nothing_is_in_a_folder_that_is_gone(tmp_path: Path, looks: list[str]) -> None:
    found, paths = pieces(tmp_path / "0", 1)
    os.unlink(paths[0])
    (tmp_path / "0").rmdir()
    assert found.find(0) is None


def test_it_does_not_look_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "_LOOK_S", 3600.0)
    found, paths = pieces(tmp_path / "0", 2)
    assert found.find(0) == paths[0]
    os.unlink(paths[1])
    assert found.find(1) == paths[1]  # for as long as readers can cope with
