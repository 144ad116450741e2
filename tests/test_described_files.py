"""Folders with metadata.csv, .jsonl or .parquet, and splits of folders, on this machine."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import Loader, RandomResizedCrop, Resize
from tests.pictures import decoded, jpeg

FILES = [jpeg(20, 30, seed=n) for n in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, data in enumerate(FILES):
        path = tmp_path / "photos" / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "photos"


def describe(folder: Path, **columns: list[object]) -> None:
    names = [f"{number % 2}/{number}.jpg" for number in reversed(range(6))]
    pq.write_table(pa.table({"file_name": names, **columns}), folder / "metadata.parquet")


def test_rows_are_those_of_the_metadata(folder: Path) -> None:
    describe(folder, stars=[5, 4, 3, 2, 1, 0], box=[[1.0, n] for n in range(6)])
    with fastio.open(folder) as photos:
        assert list(photos.schema.fields) == ["image", "stars", "box"]
        assert (photos[0]["image"] == decoded(FILES[5])).all()
        with Loader(photos, 4, shuffle=True, transforms=[RandomResizedCrop(8)]) as loader:
            assert loader.path == "native"
            found = [n for batch in loader for n in batch["stars"].tolist()]
    assert sorted(found) == list(range(6))


def test_it_can_be_packed_and_pickled(folder: Path, tmp_path: Path) -> None:
    describe(folder, caption=list("fedcba"))
    assert fastio.pack(folder, tmp_path / "packed").rows == 6
    with fastio.open(tmp_path / "packed") as packed, fastio.open(folder) as photos:
        copy = pickle.loads(pickle.dumps(photos))
        assert [row["caption"] for row in packed] == list("fedcba")
        assert copy.fingerprint == photos.fingerprint
        assert copy[2]["caption"] == "d"


def test_columns_of_the_metadata_are_selected_and_their_nulls_replaced(folder: Path) -> None:
    describe(folder, stars=[None, 4, 3, 2, 1, 0], other=[{"a": [[{"b": 1}]]}] * 6)
    with fastio.open(folder, columns=["stars"], nulls={"stars": 9}) as photos:
        assert list(photos.schema.fields) == ["image", "stars"]
        assert photos.gather("stars", np.arange(2)).tolist() == [9, 4]


def test_a_changed_column_changes_the_fingerprint(folder: Path) -> None:
    describe(folder, stars=[5, 4, 3, 2, 1, 0])
    before = fastio.open(folder).fingerprint
    describe(folder, stars=[5, 4, 3, 2, 1, 7])
    assert fastio.open(folder).fingerprint != before


def test_a_missing_file_is_a_bad_sample(folder: Path) -> None:
    describe(folder, stars=[5, 4, 3, 2, 1, 0])
    (folder / "1" / "5.jpg").unlink()
    photos = fastio.open(folder)
    loader = Loader(photos, 6, transforms=[Resize((8, 8))])
    with loader, pytest.raises(fastio.ImageError, match=r"1/5\.jpg"):
        next(iter(loader))
    with Loader(photos, 6, transforms=[Resize((8, 8))], on_error="skip") as loader:
        assert next(iter(loader))["stars"].tolist() == [4, 3, 2, 1, 0]


def test_a_field_of_its_own_name_is_refused(folder: Path) -> None:
    describe(folder, image=[1, 2, 3, 4, 5, 6])
    with pytest.raises(fastio.SchemaError, match="has a column 'image'"):
        fastio.open(folder)


def test_options_of_columns_need_metadata(folder: Path) -> None:
    with pytest.raises(fastio.OptionError, match="columns is an option for folders with metadata"):
        fastio.open(folder, columns=["stars"])


def test_splits_of_a_folder_are_found_as_on_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="knows which files are a split")
    for split, rows in (("train", 5), ("test", 3)):
        path = tmp_path / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": np.arange(rows)}), path)
    with fastio.open(tmp_path, split="test") as test:
        assert [row["x"] for row in test] == [0, 1, 2]
    with pytest.raises(fastio.OptionError, match="has no split 'dev'"):
        fastio.open(tmp_path, split="dev")
