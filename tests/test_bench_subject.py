"""The data of a bench: what it is, and how it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastio
from fastio import BenchError, OptionError
from fastio.diagnose.bench import Options
from fastio.diagnose.bench.runs import packed_rate
from fastio.diagnose.bench.subject import Subject
from tests.support import numbered_folder


def halved(images: torch.Tensor) -> torch.Tensor:
    return images // 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return numbered_folder(tmp_path / "photos")


def rows_of(folder: Path, count: int, sample: Any) -> Path:
    fastio.pack((sample(row) for row in range(count)), folder)
    return folder


def test_a_folder_of_images(folder: Path) -> None:
    subject = Subject.of(Options(str(folder), threads=2, size=16))
    assert (subject.data.kind, subject.data.codecs, subject.data.rows) == (
        "folder",
        {"jpeg": 24},
        24,
    )
    assert subject.batch_size == 24  # no larger than the data
    assert subject.data.nbytes == sum(path.stat().st_size for path in folder.glob("*/*"))
    with subject.open() as loader:
        images, _ = next(iter(loader))
        assert images.shape == (24, 3, 16, 16)
        assert images.dtype == torch.uint8
        assert loader.batch.valid == 24
        assert loader.stats().samples == 24


def test_packed_images(folder: Path, tmp_path: Path) -> None:
    fastio.pack(folder, tmp_path / "packed")
    subject = Subject.of(Options(str(tmp_path / "packed"), batch_size=5))
    assert (subject.data.kind, subject.batch_size) == ("packed", 5)
    assert subject.data.nbytes > 0
    assert subject.data.storage in ("disk", "memory")


def test_every_iterator_has_the_same_batches(folder: Path) -> None:
    with Subject.of(Options(str(folder), batch_size=7, size=16)).open() as loader:
        first = [labels.clone() for _, labels in loader]
        loader.set_epoch(0)
        again = [labels.clone() for _, labels in loader]
        assert len(first) == len(loader) == 4
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_model_gets_normalised_images(folder: Path) -> None:
    from dataclasses import replace

    subject = replace(Subject.of(Options(str(folder), size=16)), normalized=True)
    with subject.open() as loader:
        images, _ = next(iter(loader))
    assert images.dtype == torch.float32
    assert type(subject.steps.native[-1]).__name__ == "Normalize"


def test_own_transforms_are_timed_and_can_be_left_out(folder: Path) -> None:
    subject = Subject.of(Options(str(folder), size=16, transforms=(halved,)))
    assert "halved" in subject.described()
    with subject.open(plain=True) as plain:
        whole, _ = next(iter(plain))
        assert subject.transforming == []
    with subject.open() as loader:
        images, _ = next(iter(loader))
        assert torch.equal(images, whole // 2)
        ((start, end),) = subject.transforming
        assert end >= start


def test_packed_rows(tmp_path: Path) -> None:
    data = rows_of(tmp_path / "rows", 50, lambda row: {"x": np.full(3, row, np.float32), "y": row})
    subject = Subject.of(Options(str(data), transforms=(dict,)))
    assert (subject.data.kind, subject.data.codecs, subject.data.rows) == ("tables", {}, 50)
    with subject.open() as loader:
        batch = next(iter(loader))
        assert batch["x"].shape == (50, 3)
        assert loader.batch.valid == 50
        assert len(subject.transforming) == 1


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{row},{row / 2}\n" for row in range(30)))
    subject = Subject.of(Options(str(path), batch_size=8))
    assert (subject.data.kind, subject.data.rows) == ("tables", 30)
    with subject.open() as loader:
        assert sum(loader.batch.valid for _ in loader) == 30


def test_tokens_come_in_windows(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f'{{"text": "{"word " * 40}"}}\n' for _ in range(20)))
    fastio.pack(corpus, tmp_path / "tokens", tokenizer="bytes")
    subject = Subject.of(Options(str(tmp_path / "tokens"), length=32, batch_size=4))
    assert subject.data.kind == "tokens"
    with subject.open() as loader:
        assert subject.data.rows == sum(loader.batch.valid for _ in loader)


def test_a_dataset_of_torch_is_none_to_measure() -> None:
    with pytest.raises(BenchError, match="give the folder"):
        Subject.of(Options(torch.utils.data.TensorDataset(torch.zeros(4, 2))))


def test_what_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(fastio.FastioError):
        Subject.of(Options(str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the data"),
        ({"data": "x", "preset": "abacus"}, "resnet50-h100"),
        ({"data": "x", "model": "resnet18", "rate": 3.0}, "one of them"),
        ({"data": "x", "preset": "resnet50-h100", "rate": 3.0}, "one of them"),
        ({"data": "x", "model": "resnet18", "bus": 3.0}, "bus"),
        ({"data": "x", "rate": 0.0}, "rate must be above 0"),
        ({"data": "x", "batch_size": -1}, "batch_size"),
        ({"data": "x", "epochs": 2}, "model"),
        ({"data": "x", "threads": -2}, "at least 0"),
    ],
)
def test_options_that_are_not_possible(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options(**options)


def test_a_part_of_a_folder_is_packed_for_a_try(folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    rate = packed_rate(Subject.of(Options(str(folder), batch_size=4, size=16)), work, 0.1)
    assert rate is not None
    assert rate > 0
    assert len(list(folder.glob("*/*"))) == 24


def test_a_folder_without_jpegs_is_not(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "photos" / "a" / "1.png")
    subject = Subject.of(Options(str(tmp_path / "photos"), size=16))
    assert packed_rate(subject, tmp_path / "work", 0.1) is None
