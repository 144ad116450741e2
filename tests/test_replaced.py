"""Data that is replaced while it is read ends in a named error, and never in another's rows."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Cache, ShardCorrupt, SourceChanged
from tests.servers import FaultProxy, http_folder
from tests.staging_support import noise

ROWS = 64
MENDED = 1000  # what version 2 has more in its labels
CHANGED = (SourceChanged, ShardCorrupt)


def pack(path: Path, more: int = 0) -> Path:
    """Images and their numbers, `more` added to these; 4 shards, as large in every version."""
    samples = ((noise(row, 16), row + more) for row in range(ROWS))
    fastio.pack(samples, path, codec="raw", shard_size=14_000)
    return path


def pack_table(path: Path, more: int = 0) -> Path:
    samples = ({"x": np.full(8, row, np.float32), "y": row + more} for row in range(ROWS))
    fastio.pack(samples, path, shard_size=1024)
    return path


@pytest.fixture(params=[pack, pack_table], ids=["images", "table"])
def versions(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The folder that is read, and another version of it beside."""
    one, two = request.param(tmp_path / "data"), request.param(tmp_path / "two", MENDED)
    sizes = [[p.stat().st_size for p in sorted(folder.glob("shard*"))] for folder in (one, two)]
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) >= 3
    return one, two


def labels_of(batch: Any) -> list[int]:
    return (batch["y"] if isinstance(batch, dict) else batch[1]).tolist()


def overwrite(folder: Path, other: Path) -> None:
    """Copies the files of another version over those that are there, in place."""
    for path in other.iterdir():
        shutil.copyfile(path, folder / path.name)


def swap(folder: Path, other: Path) -> None:
    """Puts another folder in the place of one."""
    folder.rename(folder.with_name("old"))
    other.rename(folder)


def overwrite_shards(folder: Path, other: Path) -> None:
    for path in other.glob("shard*"):
        shutil.copyfile(path, folder / path.name)


def rename_shards(folder: Path, other: Path) -> None:
    for path in other.glob("shard*"):
        path.rename(folder / path.name)


def replace_manifest(folder: Path, other: Path) -> None:
    os.replace(other / "manifest.arrow", folder / "manifest.arrow")


def read_on(batches: Iterator[Any], labels: list[int]) -> None:
    for batch in batches:
        labels += labels_of(batch)


# On this machine


@pytest.mark.parametrize("shuffle", [False, True], ids=["in-order", "shuffled"])
@pytest.mark.parametrize(
    "replace", [overwrite, swap, overwrite_shards, rename_shards, replace_manifest]
)
def test_a_dataset_that_is_replaced_during_an_epoch_is_a_named_error(
    versions: tuple[Path, Path], replace: Callable[[Path, Path], None], shuffle: bool
) -> None:
    folder, other = versions
    labels: list[int] = []
    with fastio.Loader(folder, 4, shuffle=shuffle, num_workers=1, prefetch_factor=1) as loader:
        batches = iter(loader)
        labels += labels_of(next(batches))
        replace(folder, other)
        with pytest.raises(CHANGED, match="data"):
            read_on(batches, labels)


def test_a_dataset_that_was_replaced_between_epochs_is_named_before_a_row_comes(
    versions: tuple[Path, Path],
) -> None:
    folder, other = versions
    with fastio.Loader(folder, 4, num_workers=1) as loader:
        labels: list[int] = []
        read_on(iter(loader), labels)
        assert sorted(labels) == list(range(ROWS))
        overwrite(folder, other)
        with pytest.raises(SourceChanged, match="data"):
            next(iter(loader))


def test_a_shard_of_another_dataset_is_refused_when_it_is_opened(
    versions: tuple[Path, Path],
) -> None:
    folder, other = versions
    shutil.copyfile(other / "shard-000001.arrow", folder / "shard-000001.arrow")
    with fastio.open(folder) as dataset, pytest.raises(ShardCorrupt, match=r"000001.*expected"):
        dataset.shard(1)
    with (
        fastio.Loader(folder, 4, num_workers=1) as loader,
        pytest.raises(ShardCorrupt, match="shard-000001"),
    ):
        read_on(iter(loader), [])


def test_rows_of_a_shard_that_was_overwritten_are_not_handed_out(
    versions: tuple[Path, Path],
) -> None:
    folder, other = versions
    with fastio.open(folder) as dataset:
        assert isinstance(dataset, fastio.Dataset)
        dataset[0]
        overwrite_shards(folder, other)
        with pytest.raises(SourceChanged, match="shard-000000"):
            dataset[1]


def test_a_dataset_is_the_same_one_in_another_process(versions: tuple[Path, Path]) -> None:
    folder, other = versions
    with fastio.open(folder) as dataset:
        kept = pickle.dumps(dataset)
        pickle.loads(kept).close()
        swap(folder, other)
        with pytest.raises(SourceChanged, match="data"):
            pickle.loads(kept)


# Behind a URL


@pytest.fixture
def served(versions: tuple[Path, Path]) -> Iterator[FaultProxy]:
    with http_folder(versions[0].parent) as url, FaultProxy(url, seed=1) as proxy:
        yield proxy


@pytest.mark.parametrize("cached", [False, True], ids=["memory", "cache"])
@pytest.mark.parametrize("replace", [overwrite, overwrite_shards])
def test_nothing_of_another_version_comes_from_a_url_or_into_a_cache(
    versions: tuple[Path, Path],
    served: FaultProxy,
    replace: Callable[[Path, Path], None],
    cached: bool,
    tmp_path: Path,
) -> None:
    folder, other = versions
    kept = Path(shutil.copytree(folder, tmp_path / "kept"))
    cache = Cache(tmp_path / "cache", 16 << 20) if cached else None
    labels: list[int] = []
    with fastio.Loader(f"{served.url}/data", 4, cache=cache, num_workers=1) as loader:
        replace(folder, other)
        with pytest.raises(CHANGED, match="data"):
            read_on(iter(loader), labels)
    assert [label for label in labels if label >= MENDED] == []
    overwrite(folder, kept)
    labels.clear()
    with fastio.Loader(f"{served.url}/data", 4, cache=cache, num_workers=1) as loader:
        read_on(iter(loader), labels)
        assert loader.stats().refetched == 0  # what the cache has is of the version that is there
    assert sorted(labels) == list(range(ROWS))


def test_a_manifest_that_changed_behind_a_url_is_said_to_have_changed(
    versions: tuple[Path, Path], served: FaultProxy
) -> None:
    folder, other = versions
    with fastio.open(f"{served.url}/data") as dataset:
        overwrite(folder, other)
        with pytest.raises(SourceChanged, match="data"):
            dataset[0]


def check_that_reading_raises(dataset: fastio.Dataset, problem: str) -> None:
    """By row and in batches, SourceChanged is raised; no sample is skipped."""
    with pytest.raises(SourceChanged, match=problem):
        dataset[0]
    with (
        fastio.Loader(dataset, 4, num_workers=1, on_error="skip") as loader,
        pytest.raises(SourceChanged, match=problem),
    ):
        next(iter(loader))


def test_images_of_another_version_are_not_taken_for_damaged_ones(tmp_path: Path) -> None:
    folder = pack(tmp_path / "data")
    samples = ((noise(row, 16, seed=1), row) for row in range(ROWS))
    fastio.pack(samples, tmp_path / "two", codec="raw", shard_size=14_000)
    with http_folder(tmp_path) as url, fastio.open(f"{url}/data") as dataset:
        assert isinstance(dataset, fastio.Dataset)
        for shard in range(dataset.num_shards):
            dataset.shard(shard)
        overwrite(folder, tmp_path / "two")
        check_that_reading_raises(dataset, "data was replaced")


@pytest.mark.parametrize("part", ["head", "image"])
def test_what_is_damaged_at_rest_is_named_after_a_few_requests(part: str, tmp_path: Path) -> None:
    shard = pack(tmp_path / "data") / "shard-000000.arrow"
    with fastio.open(tmp_path / "data") as local:
        assert isinstance(local, fastio.Dataset)
        place = 40 if part == "head" else local.shard(0).extent("image")[0] + 16 * 16 * 3 + 100
    with open(shard, "r+b") as file:
        (byte,) = os.pread(file.fileno(), 1, place)
        os.pwrite(file.fileno(), bytes([byte ^ 4]), place)
    with (
        http_folder(tmp_path) as url,
        FaultProxy(url) as proxy,
        fastio.open(f"{proxy.url}/data") as dataset,
    ):
        assert isinstance(dataset, fastio.Dataset)
        with pytest.raises((ShardCorrupt, fastio.ImageError), match=r"shard-000000\.arrow"):
            dataset[1]
        asked = len(proxy.answers("shard-000000", "GET"))
    # Once more than data that is whole; a head has two ranges at most.
    assert asked <= (2 * 2 if part == "head" else 2 + 2)


def test_an_image_that_comes_damaged_is_fetched_again(tmp_path: Path) -> None:
    pack(tmp_path / "data")
    with (
        http_folder(tmp_path) as url,
        FaultProxy(url, seed=1) as proxy,
        fastio.open(f"{proxy.url}/data") as dataset,
    ):
        dataset[0]
        proxy.fail("flip", next=3, match="shard-000000")
        image, label = dataset[1]
        assert np.array_equal(image, noise(1, 16))
        assert label == 1
        assert proxy.struck()["flip"] == 3


@pytest.mark.parametrize("seed", [0, 1], ids=["equal", "another"])
@pytest.mark.parametrize("opened", [False, True], ids=["new shards", "opened shards"])
def test_shards_that_overwriting_has_deleted_are_said_to_be_of_a_replaced_dataset(
    seed: int, opened: bool
) -> None:
    """In a store, the shards of the new dataset have other names, also if the data is the same."""
    url = f"memory://replaced/{seed}-{opened}"

    def write(seed: int) -> None:
        samples = ((noise(row, 16, seed=seed), row) for row in range(ROWS))
        fastio.pack(samples, url, codec="raw", shard_size=14_000, overwrite=True)

    write(0)
    with fastio.open(url) as dataset:
        assert isinstance(dataset, fastio.Dataset)
        for shard in range(dataset.num_shards if opened else 0):
            dataset.shard(shard)
        write(seed)
        check_that_reading_raises(dataset, "was replaced after it was opened")
