"""Folders with metadata.csv, .jsonl or .parquet on this machine."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import Loader, PackError, RandomResizedCrop, Resize
from tests.pictures import decoded, jpeg
from tests.support import pack_stopped

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


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
@pytest.mark.parametrize("column", ["profile_name", "file_name_hash"])
def test_a_table_with_a_column_of_a_similar_name_is_ignored(
    folder: Path, name: str, column: str
) -> None:
    if name.endswith(".csv"):
        (folder / name).write_text(f"id,{column}\n1,Ann\n")
    elif name.endswith(".jsonl"):
        (folder / name).write_text(json.dumps({"id": 1, column: "Ann"}) + "\n")
    else:
        pq.write_table(pa.table({"id": [1], column: ["Ann"]}), folder / name)
    with fastio.open(folder) as photos:
        assert list(photos.schema.fields) == ["image", "label"]


def test_it_can_be_packed_and_pickled(folder: Path, tmp_path: Path) -> None:
    describe(folder, caption=list("fedcba"))
    assert fastio.pack(folder, tmp_path / "packed").rows == 6
    with fastio.open(tmp_path / "packed") as packed, fastio.open(folder) as photos:
        copy = pickle.loads(pickle.dumps(photos))
        assert [row["caption"] for row in packed] == list("fedcba")
        assert copy.fingerprint == photos.fingerprint
        assert copy[2]["caption"] == "d"


def test_a_pack_is_not_resumed_with_another_column(folder: Path, tmp_path: Path) -> None:
    describe(folder, caption=list("fedcba"))
    pack_stopped(2, folder, tmp_path / "out", shard_size=500)
    describe(folder, caption=list("FEDCBA"))
    with pytest.raises(PackError, match="cannot resume"):
        fastio.pack(folder, tmp_path / "out", shard_size=500, resume=True)


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


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_a_table_that_names_no_files_is_ignored(folder: Path, name: str) -> None:
    if name.endswith(".csv"):
        (folder / name).write_text("camera,lens\nx,y\n")
    elif name.endswith(".jsonl"):
        (folder / name).write_text('{"camera": "file"}\n')
    else:
        pq.write_table(pa.table({"camera": ["x"]}), folder / name)
    with fastio.open(folder) as photos:
        assert photos.classes == ("0", "1")
        assert photos.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_damaged_table_is_an_error(folder: Path) -> None:
    (folder / "metadata.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(fastio.ShardCorrupt, match=r"metadata\.parquet"):
        fastio.open(folder)
