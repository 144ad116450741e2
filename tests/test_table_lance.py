"""Lance datasets as tables: numbers by row groups, images decoded natively."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastio
from fastio import Loader, RandomResizedCrop, ShardCorrupt
from fastio.schema import Image, Scalar
from tests.pictures import decoded, jpeg
from tests.servers import S3

N = 40
FILES = [jpeg(30 + n, 40, seed=n) for n in range(N)]
CROP = {"image": [RandomResizedCrop(16)]}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    lance = pytest.importorskip("lance", reason="pylance reads Lance datasets")
    made = pa.table({"image": pa.array(FILES, pa.binary()), "label": np.arange(N)})
    lance.write_dataset(made, str(tmp_path / "photos.lance"), max_rows_per_file=18)
    return tmp_path / "photos.lance"


def labels(loader: Loader[Any]) -> list[int]:
    return [n for batch in loader for n in batch["label"].tolist()]


def test_images_of_a_lance_dataset_are_decoded(photos: Path) -> None:
    with fastio.open(photos) as dataset:
        assert dataset.schema.fields == {"image": Image(), "label": Scalar("int64")}
        assert len(dataset) == N
        assert (dataset[25]["image"] == decoded(FILES[25])).all()
    with Loader(photos, 6, shuffle=True, seed=1, transforms=CROP) as loader:
        assert loader.path == "native"
        assert sorted(labels(loader)) == list(range(N))


# The server's process is forked, from a process that may have imported lance already.
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_lance_dataset_in_a_bucket_is_a_table(photos: Path, s3: S3) -> None:
    bucket = s3.bucket("lance")
    for path in photos.rglob("*"):
        if path.is_file():
            s3.put("lance", f"x/{path.relative_to(photos.parent)}", path.read_bytes())
    url = f"{bucket}/x/photos.lance"
    with fastio.open(url, storage_options=s3.options()) as dataset:
        assert (dataset[25]["image"] == decoded(FILES[25])).all()
        assert len(dataset.fingerprint) == 16
        with Loader(dataset, 6, shuffle=True, seed=1, transforms=CROP) as loader:
            assert sorted(labels(loader)) == list(range(N))
    chosen = fastio.open(url, storage_options=s3.options(), columns=["label"])
    with Loader(chosen, 6) as loader:
        assert labels(loader) == list(range(N))
    with pytest.raises(fastio.SourceNotFound, match=r"none\.lance does not exist"):
        fastio.open(f"{bucket}/x/none.lance", storage_options=s3.options())
    with pytest.raises(fastio.StoreError, match="is not an s3, gs or az URL"):
        fastio.open(["memory://x/photos.lance"])


def test_other_columns_are_read_by_groups_of_rows(photos: Path) -> None:
    with Loader(photos, 6, fields=["label"], shuffle=True) as loader:
        assert sorted(labels(loader)) == list(range(N))
    chosen = fastio.open(photos, columns=["label"], filters=[("label", ">=", 30)])
    with Loader(chosen, 4) as loader:
        assert labels(loader) == list(range(30, N))


def test_rows_that_were_deleted_do_not_come(photos: Path) -> None:
    import lance

    lance.dataset(str(photos)).delete("label % 4 = 1")
    with Loader(photos, 6, transforms=CROP) as loader:
        assert labels(loader) == [n for n in range(N) if n % 4 != 1]


def test_an_open_dataset_stays_at_its_version(photos: Path) -> None:
    import lance

    with fastio.open(photos) as dataset:
        before = dataset.fingerprint
        lance.dataset(str(photos)).delete("label < 20")
        assert len(dataset) == N
        assert dataset[3]["label"] == 3
    with fastio.open(photos) as dataset:
        assert len(dataset) == N - 20
        assert dataset.fingerprint != before


def test_a_lance_dataset_is_packed(photos: Path, tmp_path: Path) -> None:
    assert fastio.pack(photos, tmp_path / "packed").rows == N
    with fastio.open(tmp_path / "packed") as packed:
        assert [packed[row]["label"] for row in (0, 39)] == [0, 39]


def test_damage_is_an_error_that_names_the_dataset(photos: Path) -> None:
    for file in (photos / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ShardCorrupt, match=r"photos.lance cannot be read as a Lance dataset"):
        fastio.open(photos)


def test_without_pylance_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "a.lance" / "_versions" / "1.manifest").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "lance", None)
    with pytest.raises(fastio.PackageMissing, match=r"pip install 'fastio\[lance\]'"):
        fastio.open(tmp_path / "a.lance")
