"""tools/train_codebook: what it reads, what it says, and what it refuses before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import train_codebook

from fastio import _native
from tests.pictures import write_folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos")


def run(photos: Path, output: Path, *more: str) -> int:
    return train_codebook.main([str(photos), "--output", str(output), "--passes", "2", *more])


def test_it_writes_a_codebook(photos: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(photos, tmp_path / "book") == 0
    _native.Codebook(np.fromfile(tmp_path / "book", np.uint8))
    printed = capsys.readouterr().out
    assert "size of the block records, divided by the size of the JPEG files" in printed


def test_it_takes_files_only(photos: Path, tmp_path: Path, capsys: Any) -> None:
    (photos / "folder.jpg").mkdir()
    assert run(photos, tmp_path / "book") == 0
    assert "15 JPEG files" in capsys.readouterr().out


@pytest.mark.parametrize(("trial", "said"), [(0.8, False), (0.9, True), (1.0, True)])
def test_it_says_when_more_files_are_needed(
    photos: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    trial: float,
    said: bool,
) -> None:
    ratios = iter([0.9, trial, 0.7])
    monkeypatch.setattr(train_codebook, "ratio", lambda *_: next(ratios))
    assert run(photos, tmp_path / "book") == 0
    assert ("train on more files" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("output", "problem"), [("nodir/book", "there is no folder"), ("photos", "it is a folder")]
)
def test_what_cannot_be_written_is_refused_before_training(
    photos: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    problem: str,
) -> None:
    monkeypatch.setattr(train_codebook, "read_jpegs", None)
    with pytest.raises(SystemExit):
        run(photos, tmp_path / output)
    assert f"cannot write {tmp_path / output}: {problem}" in capsys.readouterr().err
