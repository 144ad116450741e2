"""WebDataset tars in a store: the samples of the same tars here, each byte fetched once."""

from __future__ import annotations

import io
import os
import pickle
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from tests.pictures import jpeg
from tests.servers import S3, FaultProxy, http_folder
from tests.support import open_loader

TARS, SAMPLES = 3, 14
PATTERN = "train-{000000..000002}.tar"
CROP = [fastio.RandomResizedCrop(24), fastio.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote") / "tars"
    folder.mkdir()
    for number in range(TARS):
        with tarfile.open(folder / f"train-{number:06}.tar", "w") as tar:
            for index in range(SAMPLES):
                key = f"{number:02}{index:04}"
                add(tar, f"{key}.jpg", jpeg(40 + index, 56, seed=100 * number + index))
                add(tar, f"{key}.cls", str(index % 5).encode())
                add(tar, f"{key}.txt", f"sample {index} of {number}".encode())
    return folder


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def test_an_empty_tar_is_named_by_its_url(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    with http_folder(tmp_path) as url:
        error = re.escape(f"{url}/a.tar is not a tar: it is empty (0 bytes)")
        with pytest.raises(fastio.ShardCorrupt, match=error):
            fastio.open(f"{url}/a.tar")


def epochs(source: Any, count: int = 2, **arguments: Any) -> dict[tuple[int, int], Any]:
    """(epoch, row) -> (key, pixels, class, text)."""
    found = {}
    with open_loader(
        source, 5, shuffle=True, seed=0, transforms={"jpg": CROP}, num_workers=2, **arguments
    ) as loader:
        for epoch in range(count):
            for batch in loader:
                columns = (batch[name] for name in ("__key__", "jpg", "cls", "txt"))
                for row, key, image, label, text in zip(loader.batch.rows, *columns, strict=True):
                    found[epoch, int(row)] = key, image.numpy().tobytes(), int(label), text
    return found


@pytest.fixture(scope="module")
def local(tars: Path) -> dict[tuple[int, int], Any]:
    return epochs(str(tars / PATTERN))


def test_without_a_cache(tars: Path, local: Any) -> None:
    with http_folder(tars) as url:
        assert epochs(f"{url}/{PATTERN}") == local


def test_with_a_cache_each_byte_comes_once_and_the_index_is_kept(
    tars: Path, local: Any, tmp_path: Path
) -> None:
    with http_folder(tars) as url, FaultProxy(url) as proxy:
        source = f"{proxy.url}/{PATTERN}"
        with fastio.TarDataset(source, cache=fastio.Cache(tmp_path / "cache")) as dataset:
            assert len(dataset) == TARS * SAMPLES
        proxy.forget()
        assert epochs(source, cache=tmp_path / "cache") == local
        assert proxy.sent_twice() == 0
        proxy.forget()
        assert epochs(source, cache=tmp_path / "cache") == local
        assert not proxy.answers(method="GET") or proxy.sent() < 1024


def test_a_cache_that_is_too_small_loses_nothing(tars: Path, local: Any, tmp_path: Path) -> None:
    with http_folder(tars) as url:
        cache = fastio.Cache(tmp_path / "cache", 1100 << 10)
        assert epochs(f"{url}/{PATTERN}", cache=cache) == local


def test_a_bucket_of_tars_is_listed(tars: Path, local: Any, s3: S3) -> None:
    bucket = s3.bucket("fastio-tars")
    for path in sorted(tars.iterdir()):
        s3.put("fastio-tars", f"some/folder/{path.name}", path.read_bytes())
    assert bucket
    found = epochs("s3://fastio-tars/some/folder", storage_options=s3.options())
    assert found == local


def test_rows_are_read_one_by_one_too(tars: Path) -> None:
    with http_folder(tars) as url:
        here = fastio.open(str(tars / PATTERN))
        there = fastio.open(f"{url}/{PATTERN}")
        for row in (0, SAMPLES, TARS * SAMPLES - 1):
            expected, found = here[row], there[row]
            assert np.array_equal(expected.pop("jpg"), found.pop("jpg"))
            assert expected == found
        again = pickle.loads(pickle.dumps(there))
        assert again[3]["txt"] == there[3]["txt"]
        for dataset in (here, there, again):
            dataset.close()


def test_a_tar_that_is_missing_is_named(tars: Path) -> None:
    with http_folder(tars) as url, pytest.raises(fastio.SourceNotFound, match="train-000003"):
        fastio.open(f"{url}/train-{{000000..000003}}.tar")


def test_a_folder_of_something_else_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    os.makedirs(tmp_path / "cache")
    with http_folder(tmp_path) as url, pytest.raises(fastio.DatasetNotFound, match="manifest"):
        fastio.open(url)
