"""Splits and configurations of local folders that have the layout of datasets on the Hub."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import (
    DatasetNotFound,
    FormatUnsupported,
    Loader,
    OptionError,
    Resize,
    SourceNotFound,
    StoreError,
)
from tests.pictures import decoded, png

pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The datasets package asks no server, and keeps what it writes among the tests' files."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def parquet(path: Path, rows: int, first: int = 0, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": np.arange(first, first + rows), **columns}), path)


@pytest.fixture(params=["names", "folders"])
def numbers(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of two splits, by the names of files or of folders."""
    if request.param == "names":
        parquet(tmp_path / "data/train-00000-of-00002.parquet", 5)
        parquet(tmp_path / "data/train-00001-of-00002.parquet", 5, 5)
        parquet(tmp_path / "data/test-00000-of-00001.parquet", 3, 100)
    else:
        parquet(tmp_path / "train/a.parquet", 5)
        parquet(tmp_path / "train/b.parquet", 5, 5)
        parquet(tmp_path / "test/a.parquet", 3, 100)
    return tmp_path


def numbers_of(dataset: Any) -> list[int]:
    found: list[int] = dataset.gather("n", np.arange(len(dataset))).tolist()
    return found


def test_a_split_has_the_files_that_the_datasets_package_finds(numbers: Path) -> None:
    import datasets

    for split in ("train", "test"):
        expected = datasets.load_dataset(str(numbers), split=split)["n"]
        for folder in (numbers, str(numbers)):
            with fastio.open(folder, split=split) as dataset:
                assert numbers_of(dataset) == list(expected)
    with fastio.open(numbers) as dataset:  # without a split, it is read as any folder
        assert len(dataset) == 13


def test_a_split_can_be_loaded_packed_and_described(
    numbers: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packed = tmp_path_factory.mktemp("out") / "packed"
    with Loader(fastio.open(numbers, split="train"), 4) as loader:
        assert [n for batch in loader for n in batch["n"].tolist()] == list(range(10))
    fastio.pack(numbers, packed, split="test")
    with fastio.open(packed) as dataset:
        assert numbers_of(dataset) == [100, 101, 102]
    assert fastio.sources.describe(numbers, split="test")["rows"] == 3


def test_a_split_that_is_not_there_is_named(numbers: Path) -> None:
    with pytest.raises(OptionError, match=r"has no split 'dev'. Its splits are train, test"):
        fastio.open(numbers, split="dev")


def test_configurations_of_a_readme_decide(tmp_path: Path) -> None:
    parquet(tmp_path / "one/a.parquet", 2)
    parquet(tmp_path / "two/a.parquet", 3, 7)
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/*.parquet\n"
        for name in ("one", "two")
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    with fastio.open(tmp_path, config="two") as dataset:  # which has one split
        assert numbers_of(dataset) == [7, 8, 9]
    with fastio.open(tmp_path, config="one", split="train") as dataset:
        assert numbers_of(dataset) == [0, 1]
    with pytest.raises(OptionError, match="config"):
        fastio.open(tmp_path, split="train")
    with pytest.raises(OptionError, match="three"):
        fastio.open(tmp_path, config="three")


def test_images_have_the_classes_of_their_folders(tmp_path: Path) -> None:
    files = {}
    for split, count in (("train", 3), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                files[split, name, n] = png(8, 9, seed=len(files))
                (folder / f"{n}.png").write_bytes(files[split, name, n])
    dataset = fastio.open(tmp_path, split="test")
    with Loader(dataset, 4, transforms=[Resize((4, 4))]) as loader:
        (batch,) = loader
    assert dataset.classes == ("cat", "dog")
    assert batch[1].tolist() == [0, 0, 1, 1]
    assert (dataset[3][0] == decoded(files["test", "dog", 1])).all()


def test_metadata_of_a_split_is_that_of_its_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for n in range(2):
            (tmp_path / split / f"{n}.png").write_bytes(png(8, 9, seed=n))
        lines = ["file_name,caption", f"1.png,{split} one", f"0.png,{split} none"]
        (tmp_path / split / "metadata.csv").write_text("\n".join(lines))
    with fastio.open(tmp_path, split="test") as dataset:
        assert dataset.gather("caption", np.arange(2)) == ["test one", "test none"]
        assert (dataset[0]["image"] == decoded(png(8, 9, seed=1))).all()


def test_text_files_and_tables_of_text(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("n,text\n1,a\n2,b\n")
    (tmp_path / "test.csv").write_text("n,text\n3,c\n")
    with fastio.open(tmp_path, split="test") as dataset:
        assert dataset[0] == {"n": 3, "text": "c"}


@pytest.mark.parametrize("option", ["split", "config"])
def test_what_has_no_splits_is_refused(tmp_path: Path, option: str) -> None:
    import datasets

    parquet(tmp_path / "a/a.parquet", 3)
    fastio.pack(tmp_path / "a", tmp_path / "packed")
    datasets.Dataset.from_dict({"n": [1, 2]}).save_to_disk(str(tmp_path / "saved"))
    chosen: Any = {option: "train"}
    for name in ("packed", "saved"):
        with pytest.raises(OptionError, match="it is packed, or saved by save_to_disk"):
            fastio.open(tmp_path / name, **chosen)
    for source in (tmp_path / "a/a.parquet", "s3://bucket/folder", [str(tmp_path / "a")]):
        with pytest.raises(OptionError, match="and for local folders with the same layout"):
            fastio.open(source, **chosen)


def test_folders_without_data_and_with_other_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetNotFound, match=r"has no data files\. It has no files"):
        fastio.open(tmp_path / "empty", split="train")
    (tmp_path / "video/train").mkdir(parents=True)
    (tmp_path / "video/train/a.mp4").write_bytes(b"")
    with pytest.raises(FormatUnsupported, match="reads as 'videofolder'"):
        fastio.open(tmp_path / "video", split="train")
    shutil.rmtree(tmp_path / "video")


def test_only_a_request_that_failed_is_an_error_of_the_hub(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **options: Any) -> Any:
        raise ConnectionError("the server cannot be reached.")

    def unreadable(*args: Any, **options: Any) -> Any:
        raise PermissionError("no permission")

    with monkeypatch.context() as patch:
        patch.setattr("datasets.load_dataset_builder", refused)
        with pytest.raises(StoreError, match=r"cannot be reached\. Check the network"):
            fastio.open("hf://datasets/org/things", split="train")
        patch.setattr("datasets.load_dataset_builder", unreadable)
        with pytest.raises(SourceNotFound, match="cannot be read: no permission"):
            fastio.open(numbers, split="train")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        fastio.open(numbers, split="train")


def test_an_error_does_not_say_that_a_folder_is_empty_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: str) -> Any:
        raise PermissionError(f"no permission for {folder}")

    monkeypatch.setattr("fastio.sources.hugging_face.hub.walk", refused)
    with pytest.raises(DatasetNotFound, match="cannot be listed: no permission"):
        fastio.open(tmp_path, split="train")
