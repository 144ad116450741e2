"""Images of tars, of the datasets package and behind URLs are recoded as those of folders are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastio
from fastio import Cache, Loader
from tests.pictures import jpeg, png
from tests.recoding import (
    CROPS,
    _small_pieces,  # noqa: F401 - a fixture
    age,
    epoch,
    near,
    recode_all,
    same,
    status,
)
from tests.servers import http_folder
from tests.tars import write_tar

pytestmark = pytest.mark.usefixtures("_small_pieces")
TARS, SAMPLES = 3, 10
ROWS = TARS * SAMPLES


def members(number: int) -> list[tuple[str, bytes]]:
    found = []
    for row in range(number * SAMPLES, (number + 1) * SAMPLES):
        found += [(f"{row:04}.jpg", jpeg(100 + row, 130, seed=row))]
        found += [(f"{row:04}.cls", str(row % 4).encode()), (f"{row:04}.txt", b"text")]
    return found


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(TARS):
        write_tar(folder / f"train-{number:03}.tar", members(number))
    age(folder)
    return folder


@pytest.fixture
def url(tars: Path) -> Iterator[str]:
    with http_folder(tars) as url:
        yield f"{url}/train-{{000..002}}.tar"


def of(source: Any, cache: Any = None, name: str = "jpg", **options: Any) -> Loader[Any]:
    how = {"shuffle": True, "seed": 7, "transforms": {name: CROPS}, "num_workers": 2} | options
    return Loader(source, 4, cache=cache, **how)


def images(loader: Loader[Any], name: str = "jpg") -> dict[int, Any]:
    """The images of an epoch, by row."""
    found = {}
    for batch in loader:
        found |= dict(zip(loader.batch.rows.tolist(), batch[name], strict=True))
    return found


def test_tars_equal_what_is_packed_of_them(tars: Path, tmp_path: Path) -> None:
    fastio.pack(tars, tmp_path / "packed")
    with of(tars, tmp_path / "cache") as loader, of(tmp_path / "packed") as packed:
        recode_all(loader, ROWS)
        for each in (loader, packed):
            each.set_epoch(2)
        assert same(images(loader), images(packed))
    fastio.pack(tars, tmp_path / "copied", from_cache=tmp_path / "cache")
    for path in (tmp_path / "packed").iterdir():
        assert (tmp_path / "copied" / path.name).read_bytes() == path.read_bytes()


def test_a_tar_that_was_replaced_is_read_as_it_is_now(tars: Path, tmp_path: Path) -> None:
    with of(tars, tmp_path / "cache") as loader:
        recode_all(loader, ROWS)
    changed = [
        (name, jpeg(140, 90, seed=5) if name.endswith("0.jpg") else data)
        for name, data in members(1)
    ]
    write_tar(tars / "train-001.tar", changed)
    age(tars)
    with of(tars, tmp_path / "cache") as loader, of(tars) as plain:
        assert near(images(loader), images(plain))
        recode_all(loader, ROWS)


def test_tars_behind_a_url_are_recoded_from_what_was_fetched(
    tars: Path, url: str, tmp_path: Path
) -> None:
    fastio.pack(tars, tmp_path / "packed")
    with of(url, tmp_path / "cache", order="shuffle") as loader, of(tmp_path / "packed") as packed:
        recode_all(loader, ROWS)
        fetched = loader.stats().bytes_fetched
        for each in (loader, packed):
            each.set_epoch(3)
        assert same(images(loader), images(packed))
        assert loader.stats().bytes_fetched == fetched
        assert loader.stats().recoded == ROWS
    with Cache(tmp_path / "cache") as cache:
        recoded = [each for each in cache.status().datasets if each.recoded]
        assert [(each.rows, each.share) for each in recoded] == [(ROWS, 1.0)]


def test_images_of_the_datasets_package_equal_what_is_packed(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from tests.saved import image_dataset, save_to

    folder = save_to(image_dataset(20), tmp_path / "saved")
    age(tmp_path / "saved")
    fastio.pack(folder, tmp_path / "packed")
    with (
        of(folder, tmp_path / "cache", "image", fields=["image", "label"]) as loader,
        of(tmp_path / "packed", None, "image", fields=["image", "label"]) as packed,
    ):
        recode_all(loader, 20)
        loader.set_epoch(1)
        packed.set_epoch(1)
        assert same(images(loader, "image"), images(packed, "image"))


def test_images_in_memory_are_read_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from tests.saved import image_dataset

    with of(image_dataset(8), tmp_path / "cache", "image", fields=["image"]) as loader:
        assert len(epoch(loader)) == 8
        assert loader.stats().from_recoded == 0


def test_several_image_fields_have_records_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    pairs = [
        (f"{row:03}.{end}", jpeg(90 + row, 70 + 9 * (end == "right.jpg"), seed=row))
        for row in range(8)
        for end in ("left.jpg", "right.jpg", "mask.png")
    ]
    pairs = [(name, png() if name.endswith("png") else data) for name, data in pairs]
    write_tar(folder / "pairs.tar", pairs)
    age(folder)
    fastio.pack(folder, tmp_path / "packed")
    with fastio.open(folder) as dataset:
        fields = list(dataset.schema.image_fields)
    steps = dict.fromkeys(fields, CROPS)
    with (
        of(folder, tmp_path / "cache", transforms=steps) as loader,
        of(tmp_path / "packed", transforms=steps) as packed,
    ):
        recode_all(loader, 16)
        for each in (loader, packed):
            each.set_epoch(1)
        for got, expected in zip(loader, packed, strict=True):
            for name in fields:
                assert (got[name] == expected[name]).all()


def test_the_sources_of_a_mix_are_recoded(tars: Path, tmp_path: Path) -> None:
    mix = fastio.mix({str(tars): 1.0})
    with Loader(mix, 4, seed=1, cache=tmp_path / "cache", transforms={"jpg": CROPS}) as loader:
        recode_all(loader, ROWS)
    assert status(tmp_path / "cache").share == 1.0
