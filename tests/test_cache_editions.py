"""Versions of a dataset share the pieces of a cache that are the same in both."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import Cache, Loader
from fastio.cache import block_of, edition
from fastio.cache.editions import blocks_of, latest
from fastio.errors import CacheError
from fastio.stage import warm
from fastio.stage.earlier import Earlier
from fastio.store import Stamp
from tests.object_server import ObjectServer, object_server
from tests.recoding import pieces, recode_all
from tests.staging_support import CROPS, noise, pack_noise
from tests.support import until
from tests.test_stored_folders import RESIZE, opened, photo, photos, pixels_by_row

ROWS, MORE = 250, 90  # 16 rows are a block, so that the last of the first version is not full


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with object_server() as running:
        yield running


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack_noise(tmp_path / "packed", ROWS, shard_size=1 << 20)


def serve(server: ObjectServer, folder: Path) -> str:
    """Puts what a folder has now on the server, and forgets what was asked for."""
    for path in sorted(folder.iterdir()):
        server.put(f"packed/{path.name}", path.read_bytes())
    server.requests()
    return server.url + "/packed"


def append(folder: Path, rows: int = MORE, first: int = ROWS) -> None:
    samples = ((noise(row), row) for row in range(first, first + rows))
    fastio.pack(samples, folder, codec="raw", shard_size=1 << 20, append=True)


def read(url: str, server: ObjectServer, cache: Any, **options: Any) -> dict[int, Any]:
    """Reads an epoch; returns the crops by row."""
    dataset = fastio.open(url, cache=cache, storage_options=server.options, **options)
    found = {}
    with dataset, Loader(dataset, 8, shuffle=True, seed=0, transforms=CROPS) as loader:
        for images, labels in loader:
            assert loader.batch.rows is not None
            assert labels.tolist() == loader.batch.rows.tolist()
            found.update(zip(labels.tolist(), images.numpy().copy(), strict=True))
    return found


def shards_asked(server: ObjectServer) -> set[str]:
    return {request.split("/")[-1] for request in server.requests() if "shard-" in request}


def shards(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("shard-*")}


def test_after_an_append_only_the_new_shards_are_fetched(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    read(serve(server, packed), server, tmp_path / "cache")
    old = shards(packed)
    assert shards_asked(server) == old
    append(packed)
    found = read(serve(server, packed), server, tmp_path / "cache")
    assert shards_asked(server) == shards(packed) - old
    assert found.keys() == set(range(ROWS + MORE))
    fresh = read(serve(server, packed), server, tmp_path / "other")
    assert all((found[row] == fresh[row]).all() for row in fresh)


def test_a_version_without_new_rows_in_its_last_block_is_read_beside_the_newer_one(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    append(packed)
    url = serve(server, packed)
    for version in (1, 2, 1, 2):
        found = read(url, server, tmp_path / "cache", version=version)
        assert len(found) == (ROWS if version == 1 else ROWS + MORE)
    server.requests()
    for version in (1, 2):
        read(url, server, tmp_path / "cache", version=version)
    assert shards_asked(server) == set()


def test_warming_an_appended_version_fetches_the_new_shards(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    options = {"storage_options": server.options}
    whole = warm(serve(server, packed), tmp_path / "cache", **options)
    assert whole.complete
    assert whole.bytes == whole.bytes_fetched
    old = shards(packed)
    append(packed)
    url = serve(server, packed)
    grown = warm(url, tmp_path / "cache", **options)
    assert grown.complete
    assert shards_asked(server) == shards(packed) - old
    read(url, server, tmp_path / "cache")
    assert shards_asked(server) == set()


def test_a_table_that_grows_keeps_its_shards(server: ObjectServer, tmp_path: Path) -> None:
    folder = tmp_path / "table"

    def pack(first: int, **options: Any) -> None:
        samples = ({"x": np.full(8, row, np.float32)} for row in range(first, first + 2000))
        fastio.pack(samples, folder, shard_size=32 << 10, **options)

    def rows() -> list[int]:
        url = serve(server, folder)
        with (
            fastio.open(url, cache=tmp_path / "cache", storage_options=server.options) as dataset,
            Loader(dataset, 64, shuffle=True, seed=0) as loader,
        ):
            return sorted(int(x) for batch in loader for x in batch["x"][:, 0])

    pack(0)
    assert rows() == list(range(2000))
    old = shards(folder)
    assert shards_asked(server) == old
    pack(2000, append=True)
    assert rows() == list(range(4000))
    assert shards_asked(server) == shards(folder) - old


def test_two_datasets_that_grew_from_one_do_not_share_what_differs(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    read(serve(server, packed), server, tmp_path / "cache")
    other = tmp_path / "other"
    other.mkdir()
    for path in packed.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    append(packed)
    append(other, first=10_000)
    ours = read(serve(server, packed), server, tmp_path / "cache")
    for path in other.iterdir():
        server.put(f"packed/{path.name}", path.read_bytes())
    dataset = fastio.open(
        server.url + "/packed", cache=tmp_path / "cache", storage_options=server.options
    )
    with dataset, Loader(dataset, 8, shuffle=True, seed=0, transforms=CROPS) as loader:
        labels = [label for _, batch in loader for label in batch.tolist()]
    assert sorted(labels) == [*range(ROWS), *range(10_000, 10_000 + MORE)]
    assert ours.keys() == set(range(ROWS + MORE))


def test_a_shard_that_was_repaired_in_place_is_read(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    url = serve(server, packed)
    shard = sorted(shards(packed))[1]
    whole = (packed / shard).read_bytes()
    at = len(whole) // 2
    damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    server.put(f"packed/{shard}", damaged)
    with pytest.raises(fastio.FastioError):
        read(url, server, tmp_path / "cache")
    server.put(f"packed/{shard}", whole)
    assert read(url, server, tmp_path / "cache").keys() == set(range(ROWS))


def test_status_counts_a_grown_dataset_once(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    read(serve(server, packed), server, tmp_path / "cache")
    append(packed)
    read(serve(server, packed), server, tmp_path / "cache")
    with Cache(tmp_path / "cache") as cache:
        (dataset,) = cache.status().datasets
    assert dataset.rows == ROWS + MORE
    assert dataset.share == 1


def test_loaders_of_both_versions_run_at_a_time_in_a_small_cache(
    server: ObjectServer, packed: Path, tmp_path: Path
) -> None:
    append(packed)
    url, found = serve(server, packed), dict[int, Any]()

    def run(version: int) -> None:
        with Cache(tmp_path / "cache", "3MiB") as cache:
            found[version] = read(url, server, cache, version=version)

    threads = [threading.Thread(target=run, args=(version,)) for version in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(found[version]) for version in (1, 2)] == [ROWS, ROWS + MORE]
    assert all((found[1][row] == found[2][row]).all() for row in range(ROWS))


# --- Folders of objects ---------------------------------------------------------------------------


def serve_photos(server: ObjectServer) -> None:
    for name, data in photos().items():
        server.put(name, data)


def pixels(server: ObjectServer, cache: Path) -> dict[str, Any]:
    """Reads an epoch of the photos; returns their pixels by name. Forgets the requests before."""
    with opened(server, cache=cache) as dataset:
        server.requests()
        found = pixels_by_row(dataset)
        return {dataset.paths.relative(row): image for row, image in found.items()}


def photos_asked(server: ObjectServer) -> list[str]:
    return sorted(
        r for r in server.requests() if r.startswith("GET") and r[-4:] in (".jpg", ".png")
    )


def test_of_a_folder_with_a_changed_photo_only_that_photo_is_fetched(
    server: ObjectServer, tmp_path: Path
) -> None:
    serve_photos(server)
    before = pixels(server, tmp_path / "cache")
    assert len(photos_asked(server)) == len(before)
    server.put("photos/dog/1.jpg", photo(999))
    after = pixels(server, tmp_path / "cache")
    assert photos_asked(server) == ["GET photos/dog/1.jpg"]
    assert [name for name in after if (before[name] != after[name]).any()] == ["dog/1.jpg"]
    assert (pixels(server, tmp_path / "cache")["dog/1.jpg"] == after["dog/1.jpg"]).all()
    assert photos_asked(server) == []


def test_photos_that_are_added_and_deleted_move_the_others_within_the_cache(
    server: ObjectServer, tmp_path: Path
) -> None:
    serve_photos(server)
    before = pixels(server, tmp_path / "cache")
    photos_asked(server)
    server.put("photos/cat/00.jpg", photo(998))
    server.put("photos/cat/01.jpg", photo(997))
    server.delete("photos/dog/2.jpg")
    after = pixels(server, tmp_path / "cache")
    assert photos_asked(server) == ["GET photos/cat/00.jpg", "GET photos/cat/01.jpg"]
    assert after.keys() - before.keys() == {"cat/00.jpg", "cat/01.jpg"}
    assert all((after[name] == before[name]).all() for name in after.keys() & before.keys())


def test_warming_a_folder_with_a_changed_photo_fetches_that_photo(
    server: ObjectServer, tmp_path: Path
) -> None:
    serve_photos(server)
    url, options = server.url + "/photos", {"storage_options": server.options}
    whole = warm(url, tmp_path / "cache", **options)
    assert whole.complete
    assert whole.bytes == whole.bytes_fetched == sum(map(len, images().values()))
    server.requests()
    changed = photo(999)
    server.put("photos/dog/1.jpg", changed)
    again = warm(url, tmp_path / "cache", **options)
    assert photos_asked(server) == ["GET photos/dog/1.jpg"]
    assert again.complete
    assert again.bytes_fetched == len(changed)


def images() -> dict[str, bytes]:
    return {name: data for name, data in photos().items() if not name.endswith(".txt")}


def test_a_damaged_piece_of_an_earlier_version_is_not_copied_from(
    server: ObjectServer, tmp_path: Path
) -> None:
    serve_photos(server)
    before = pixels(server, tmp_path / "cache")
    for path in pieces(tmp_path / "cache"):
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    photos_asked(server)
    server.put("photos/dog/1.jpg", photo(999))
    after = pixels(server, tmp_path / "cache")
    assert [name for name in after if (before[name] != after[name]).any()] == ["dog/1.jpg"]


def recoded(server: ObjectServer, cache: Path, rows: int) -> dict[str, Any]:
    """Runs epochs until so many photos are recoded; returns the pixels of all by name."""
    found = {}
    with (
        opened(server, cache=cache) as dataset,
        Loader(dataset, 8, transforms=RESIZE, cache=dataset.cache) as loader,
    ):
        recode_all(loader, rows)
        for batch in loader:
            for row, image in zip(loader.batch.rows, batch[0], strict=True):
                found[dataset.paths.relative(int(row))] = image.numpy().copy()
    return found


def test_of_a_folder_with_a_changed_photo_no_old_record_is_read(
    server: ObjectServer, tmp_path: Path
) -> None:
    serve_photos(server)
    jpegs = sum(name.endswith(".jpg") for name in images())
    before = recoded(server, tmp_path / "cache", jpegs)
    server.put("photos/dog/1.jpg", photo(999))
    after = recoded(server, tmp_path / "cache", jpegs)
    difference = {name: np.abs(before[name].astype(int) - after[name]).mean() for name in after}
    assert [name for name, each in difference.items() if each > 4] == ["dog/1.jpg"]


def test_versions_with_moved_rows_that_are_used_at_once_do_not_recode_for_ever(
    server: ObjectServer, tmp_path: Path
) -> None:
    serve_photos(server)
    with opened(server) as dataset:
        expected = pixels_of_names(dataset)
    first = opened(server, cache=tmp_path / "cache")
    server.put("photos/cat/00.jpg", photo(998))  # the others move by a row
    second = opened(server, cache=tmp_path / "cache")
    with (
        first,
        second,
        Loader(first, 8, transforms=RESIZE, cache=first.cache) as one,
        Loader(second, 8, transforms=RESIZE, cache=second.cache) as two,
    ):
        rounds: list[tuple[int, int]] = []

        def settled() -> bool:
            for loader in (one, two):
                for batch in loader:
                    for row, image in zip(loader.batch.rows, batch[0], strict=True):
                        name = loader.dataset.paths.relative(int(row))
                        if name in expected:
                            difference = np.abs(expected[name].astype(int) - image.numpy())
                            assert difference.mean() < 4
                time.sleep(0.1)  # for its thread to look for what is to be recoded
            rounds.append((one.stats().recoded, two.stats().recoded))
            return rounds[-1] != (0, 0) and len(rounds) > 8 and len(set(rounds[-8:])) == 1

        until(settled)


def pixels_of_names(dataset: Any) -> dict[str, Any]:
    return {dataset.paths.relative(row): each for row, each in pixels_by_row(dataset).items()}


def test_records_are_not_those_of_another_photo_of_the_same_size_and_time(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the ETags of nginx and Apache, which have the time in seconds and the size.
    monkeypatch.setattr(Stamp, "key", property(lambda self: f'{self.size} "66f2c0a1-{self.size}"'))

    def put(number: int) -> None:
        server.put(f"photos/cat/{number:02}.jpg", photo(number).ljust(20_000, b"\0"))

    for number in range(12):
        put(number)
    before = recoded(server, tmp_path / "cache", 12)
    server.delete("photos/cat/00.jpg")  # the other photos move by a row
    put(12)
    after = recoded(server, tmp_path / "cache", 12)
    both = before.keys() & after.keys()
    assert len(both) == 11
    assert max(np.abs(before[name].astype(int) - after[name]).mean() for name in both) < 4


def test_a_cache_that_fails_while_earlier_pieces_are_looked_for_is_not_used(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(earlier: Earlier, block: int) -> Any:
        raise CacheError("the index is gone")

    serve_photos(server)
    monkeypatch.setattr(Earlier, "parts", parts)
    assert len(pixels(server, tmp_path / "cache")) == len(images())


# --- Numbers --------------------------------------------------------------------------------------


def test_the_number_of_an_edition_has_its_block() -> None:
    pieces = np.array([edition(7, b"a"), edition(7, b"b"), edition(8, b"a"), 9], np.int64)
    assert len(set(pieces.tolist())) == 4
    assert blocks_of(pieces).tolist() == [7, 7, 8, 9] == [block_of(p) for p in pieces.tolist()]
    assert edition(7, b"a") == pieces[0]


def test_the_latest_edition_is_the_one_that_was_used_last() -> None:
    pieces = np.array([edition(7, b"a"), edition(8, b"a"), edition(7, b"b"), 9], np.int64)
    assert latest(pieces, np.array([2.0, 1.0, 1.0, 0.0])).tolist() == [True, True, False, True]
    assert latest(pieces[:0], np.zeros(0)).tolist() == []
