"""The indexes of packed JPEGs: decoding begins where they say, and is right without them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage

import fastio
from fastio import _native
from fastio.errors import ShardCorrupt
from fastio.packed import check_images
from fastio.packed.shard_images import images_of
from tests import jpeg_index
from tests.servers import http_folder

CROP = [fastio.RandomResizedCrop(64), fastio.RandomHorizontalFlip()]


def photo(number: int, size: tuple[int, int] = (410, 310), **options: Any) -> bytes:
    """A JPEG of more than 16 KiB, or of another size (width, height)."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 255, (40, 30, 3), np.uint8)
    image = PillowImage.fromarray(small).resize(size, PillowImage.Resampling.BICUBIC)
    noise = rng.normal(0, 25, (size[1], size[0], 3))
    pixels = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    PillowImage.fromarray(pixels).save(file, "JPEG", quality=85, **options)
    return file.getvalue()


SAMPLES = [
    photo(0),
    photo(1, subsampling=0),
    photo(2, restart_marker_blocks=7),
    photo(3, (90, 70)),  # too small for an index
    photo(4, progressive=True),
    photo(5, (700, 300)),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos") / "photos"
    (root / "a").mkdir(parents=True)
    for number, data in enumerate(SAMPLES):
        (root / "a" / f"{number}.jpg").write_bytes(data)
    return root


def pack(photos: Path, path: Path, **options: Any) -> Path:
    fastio.pack(photos, path, codec="jpeg", **options)
    return path


def epochs(source: Any, count: int = 2, **options: Any) -> list[NDArray[np.uint8]]:
    """The images of some epochs, in the order of the rows."""
    found = []
    with fastio.Loader(
        source, 4, transforms={"image": CROP}, seed=5, num_workers=2, **options
    ) as loader:
        for _ in range(count):
            found.append(np.concatenate([batch[0].numpy() for batch in loader]))
    return found


def same(one: list[NDArray[np.uint8]], other: list[NDArray[np.uint8]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def with_indexes(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> None:
    """Makes packs store other indexes than those of the JPEGs."""
    probe = _native.jpeg_probe

    def changed(*arguments: Any) -> Any:
        *found, index = probe(*arguments)
        return (*found, change(index) if index else b"")

    monkeypatch.setattr(_native, "jpeg_probe", changed)


def test_large_baseline_jpegs_have_an_index_as_the_page_describes_it(
    photos: Path, tmp_path: Path
) -> None:
    with fastio.open(pack(photos, tmp_path / "packed")) as dataset:
        found = [dataset.stored_image("image", row).jpeg_index for row in range(len(SAMPLES))]
        batch = dataset.shard(0)
        assert images_of(batch, "image").jpeg_index is not None
    assert [bool(index) for index in found] == [True, True, True, False, False, True]
    for data, index, rows, columns, width, interval in (
        (SAMPLES[0], found[0], 20, 26, 16, 0),
        (SAMPLES[1], found[1], 39, 52, 8, 0),
        (SAMPLES[2], found[2], 20, 26, 16, 7),
        (SAMPLES[5], found[5], 19, 44, 16, 0),
    ):
        assert len(index) * 100 < len(data)
        values = jpeg_index.numbers(index)
        begin = data.rindex(b"\xff\xda")
        begin += 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
        step = min(max(800 * rows * columns // (len(data) - begin), 1), columns)
        count = rows * -(-columns // step)
        middle = int.from_bytes(data[begin + (len(data) - begin) // 2 :][:4], "little")
        head = [len(data) - begin, rows, columns, width, interval, 3, middle, step, count]
        assert values[: jpeg_index.HEADER] == head
        points = jpeg_index.points(values)
        assert points[0] == (0, [0, 0, 0])
        assert max(abs(dc) for _, dcs in points for dc in dcs) < 2048
        bits = [bit for bit, _ in points]
        assert bits == sorted(set(bits))
        assert bits[-1] < 8 * (len(data) - begin)
        assert jpeg_index.write(values) == index


def test_a_strongly_compressed_photo_has_a_small_index(tmp_path: Path) -> None:
    path = tmp_path / "photos" / "a" / "0.jpg"
    path.parent.mkdir(parents=True)
    with PillowImage.open(io.BytesIO(photo(6, (1600, 1200)))) as image:
        image.convert("L").save(path, quality=10)
    with fastio.open(pack(tmp_path / "photos", tmp_path / "packed")) as dataset:
        index = dataset.stored_image("image", 0).jpeg_index
    assert 0 < 80 * len(index) < path.stat().st_size


def test_batches_are_those_of_the_folder(photos: Path, tmp_path: Path) -> None:
    assert same(epochs(pack(photos, tmp_path / "packed")), epochs(photos))


def test_the_loader_begins_where_the_column_says(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_indexes(monkeypatch, jpeg_index.shifted)
    wrong = epochs(pack(photos, tmp_path / "packed"), 1)[0]
    right = epochs(photos, 1)[0]
    equal = [np.array_equal(a, b) for a, b in zip(wrong, right, strict=True)]
    assert equal[3:5] == [True, True]  # which have none
    assert not all(equal)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index[:-1],
        lambda index: index + b"\0",
        lambda index: bytes(len(index)),
        lambda index: b"\xff" * len(index),
        lambda index: index[: len(index) // 2],
        lambda index: jpeg_index.write([1, *jpeg_index.numbers(index)[1:]]),
    ],
    ids=["cut", "longer", "zeros", "ones", "half", "another file's size"],
)
def test_what_is_no_index_of_the_file_is_not_used(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    with_indexes(monkeypatch, change)
    assert same(epochs(pack(photos, tmp_path / "packed")), epochs(photos))


def test_random_indexes_do_no_harm(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)

    def flipped(index: bytes) -> bytes:
        data = bytearray(index)
        for _ in range(3):
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        return bytes(data)

    with_indexes(monkeypatch, flipped)
    for number in range(6):
        path = pack(photos, tmp_path / str(number))
        with fastio.Loader(path, 4, transforms={"image": CROP}, on_error="skip") as loader:
            for _ in range(2):
                for images, _ in loader:
                    assert images.shape[1:] == (3, 64, 64)


def test_a_dataset_without_indexes_is_read(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_indexes(monkeypatch, lambda index: b"")
    path = pack(photos, tmp_path / "packed")
    with fastio.open(path) as dataset:
        assert images_of(dataset.shard(0), "image").jpeg_index is None
        assert [check.bad for check in check_images(dataset)] == [[]]
        assert all(check.problem is None for check in dataset.verify())
    assert same(epochs(path), epochs(photos))


def test_some_shards_have_indexes_and_others_not(photos: Path, tmp_path: Path) -> None:
    path = pack(photos, tmp_path / "packed", shard_size=1)  # a shard for each row
    with fastio.open(path) as dataset:
        has = [
            images_of(dataset.shard(shard), "image").jpeg_index is not None for shard in range(6)
        ]
        assert has == [True, True, True, False, False, True]
        assert [bad for check in check_images(dataset) for bad in check.bad] == []
    assert same(epochs(path), epochs(photos))


def test_damage_of_the_column_is_found(photos: Path, tmp_path: Path) -> None:
    path = pack(photos, tmp_path / "packed")
    with fastio.open(path) as dataset:
        found = images_of(dataset.shard(0), "image").jpeg_index
        assert found is not None
        place = found[0] + int(found[1][1]) + 20
    shard = path / "shard-000000.arrow"
    data = bytearray(shard.read_bytes())
    data[place] ^= 4
    shard.write_bytes(data)
    with pytest.raises(ShardCorrupt, match="its columns have"):
        epochs(path)
    with fastio.open(path) as dataset:
        (check,) = dataset.verify()
        assert check.problem is not None


def test_a_deep_check_finds_a_wrong_index(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        with_indexes(patch, jpeg_index.shifted)
        path = pack(photos, tmp_path / "packed")
    with fastio.open(path) as dataset:
        bad = [bad for check in check_images(dataset) for bad in check.bad]
    assert [(each.row, each.problem) for each in bad] == [
        (row, "its index is not that of the JPEG") for row in (0, 1, 2, 5)
    ]


def test_a_file_that_was_cut_off_after_it_was_opened(photos: Path, tmp_path: Path) -> None:
    path = pack(photos, tmp_path / "packed")
    with fastio.Loader(path, 4, transforms={"image": CROP}, num_workers=1) as loader:
        for _ in loader:
            pass
        shard = path / "shard-000000.arrow"
        with fastio.open(path) as dataset:
            found = images_of(dataset.shard(0), "image").jpeg_index
            assert found is not None
        with open(shard, "r+b") as file:
            file.truncate(found[0])
        with pytest.raises(fastio.FastioError):
            for _ in loader:
                pass


@pytest.mark.parametrize("cached", [False, True])
def test_a_remote_dataset_has_its_indexes(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    with monkeypatch.context() as patch:
        with_indexes(patch, jpeg_index.shifted)
        pack(photos, tmp_path / "wrong")
    pack(photos, tmp_path / "packed")
    local = {name: epochs(tmp_path / name) for name in ("packed", "wrong")}
    assert not same(local["packed"], local["wrong"])
    with http_folder(tmp_path) as url:
        for name, expected in local.items():
            options = {"cache": tmp_path / "cache"} if cached else {}
            assert same(epochs(f"{url}/{name}", **options), expected)
            assert same(epochs(f"{url}/{name}", **options), expected)


def test_an_export_gives_the_files(photos: Path, tmp_path: Path) -> None:
    fastio.export(pack(photos, tmp_path / "packed"), tmp_path / "files")
    written = sorted(file.read_bytes() for file in (tmp_path / "files").rglob("*.jp*g"))
    assert written == sorted(SAMPLES)
