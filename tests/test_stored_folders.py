"""Folders and lists of image and sound files in a store: found, listed, read, cached, packed."""

from __future__ import annotations

import gc
import pickle
import time
import wave
import weakref
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

import fastio
from fastio import DatasetNotFound, ImageError, SampleError, SourceNotFound, StoreError, pack
from fastio.sources import stored_files
from fastio.store import list_objects, open_store
from tests.object_server import ObjectServer, object_server
from tests.recoding import recode_all
from tests.servers import S3, http_folder
from tests.support import until

CLASSES = {"cat": 23, "dog": 17}
ROWS = sum(CLASSES.values())
RESIZE = [fastio.Resize((16, 16))]


def photo(row: int, form: str = "JPEG") -> bytes:
    rng = np.random.default_rng(row)
    pixels = np.kron(rng.integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    data = BytesIO()
    Pictures.fromarray(pixels).save(data, form, quality=90)
    return data.getvalue()


def photos() -> dict[str, bytes]:
    found, row = {}, 0
    for name, count in CLASSES.items():
        for number in range(count):
            form, suffix = ("PNG", "png") if number == 3 else ("JPEG", "jpg")
            folder = f"{name}/more" if number % 5 == 4 else name
            found[f"photos/{folder}/{number}.{suffix}"] = photo(row, form)
            row += 1
    return found | {"photos/cat/notes.txt": b"no photo"}


def sound(row: int) -> bytes:
    data = BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.full(800 + row, row, "<i2").tobytes())
    return data.getvalue()


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with object_server(photos()) as running:
        yield running


def local(path: Path) -> Path:
    for name, data in photos().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path / "photos"


def opened(server: ObjectServer, **options: Any) -> Any:
    return fastio.open(server.url + "/photos", storage_options=server.options, **options)


def pixels_by_row(dataset: Any, epochs: int = 1, **options: Any) -> dict[int, Any]:
    found = {}
    options = {"transforms": RESIZE, "batch_size": 8, "shuffle": True, "seed": 3} | options
    with fastio.Loader(dataset, **options) as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                for row, image in zip(loader.batch.rows, batch[0], strict=True):
                    found[int(row)] = image.numpy().copy()
    return found


def test_rows_classes_and_pixels_are_those_of_the_same_folder_here(
    server: ObjectServer, tmp_path: Path
) -> None:
    here = fastio.open(local(tmp_path))
    with opened(server) as there:
        assert len(there) == ROWS
        assert there.classes == here.classes == ("cat", "dog")
        assert there.targets == here.targets
        names = [there.paths.relative(row) for row in range(ROWS)]
        assert names == [here.paths.relative(row) for row in range(ROWS)]
        assert all((there[row][0] == here[row][0]).all() for row in (0, 3, 24))
        expected, found = pixels_by_row(here), pixels_by_row(there)
    assert found.keys() == expected.keys() == set(range(ROWS))
    assert all((found[row] == expected[row]).all() for row in found)


def test_each_object_is_fetched_once_for_all_epochs_with_a_cache(
    server: ObjectServer, tmp_path: Path
) -> None:
    with opened(server, cache=tmp_path / "cache") as dataset:
        server.requests()
        pixels_by_row(dataset, epochs=3, order="window")
    asked = [request for request in server.requests() if request.startswith("GET")]
    assert len(asked) == len(set(asked)) == ROWS
    with opened(server, cache=tmp_path / "cache") as dataset:
        pixels_by_row(dataset)
    assert not [request for request in server.requests() if ".jpg" in request]


def test_cached_photos_are_recoded(server: ObjectServer, tmp_path: Path) -> None:
    with opened(server, cache=tmp_path / "cache") as dataset:
        plain = pixels_by_row(dataset)
        with fastio.Loader(dataset, 8, transforms=RESIZE, cache=dataset.cache) as loader:
            recode_all(loader, ROWS - len(CLASSES))  # all but the PNGs
            records = {}
            for batch in loader:
                for row, image in zip(loader.batch.rows, batch[0], strict=True):
                    records[int(row)] = image.numpy().copy()
    difference = [np.abs(records[row].astype(int) - plain[row]).mean() for row in plain]
    assert max(difference) < 4


def test_a_loader_that_is_dropped_leaves_no_cache_open(
    server: ObjectServer, tmp_path: Path
) -> None:
    gc.disable()
    try:
        with opened(server, cache=tmp_path / "cache") as dataset:
            with fastio.Loader(dataset, batch_size=4, transforms=RESIZE) as loader:
                next(iter(loader))
            cache = weakref.ref(dataset.cache.folder())
        del dataset, loader
        until(lambda: cache() is None)  # a thread that returns may still have a frame
    finally:
        gc.enable()


def test_a_loader_resumes_where_it_was(server: ObjectServer) -> None:
    def run(state: Any = None, stop: int = 99) -> tuple[list[list[int]], Any]:
        rows = []
        options: dict[str, Any] = {"shuffle": True, "seed": 1, "transforms": RESIZE}
        with opened(server) as dataset, fastio.Loader(dataset, 8, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for number, _ in enumerate(loader):
                rows.append(loader.batch.rows.tolist())
                if number + 1 == stop:
                    break
            return rows, loader.state_dict()

    whole, _ = run()
    begin, state = run(stop=2)
    assert begin + run(state)[0] == whole


def test_a_replaced_photo_is_an_error_of_its_sample_and_new_pixels_when_opened_again(
    server: ObjectServer, tmp_path: Path
) -> None:
    name = "photos/cat/1.jpg"
    with opened(server, cache=tmp_path / "cache") as dataset:
        (row,) = (row for row in range(ROWS) if dataset.paths.relative(row) == "cat/1.jpg")
        before = pixels_by_row(dataset)
        server.put(name, photo(999))
        with pytest.raises(SampleError, match=r"cat/1\.jpg.*was replaced"):
            _ = dataset[row]
    with opened(server, cache=tmp_path / "cache") as dataset:
        after = pixels_by_row(dataset)
    assert [row for row in before if (before[row] != after[row]).any()] == [row]


@pytest.mark.parametrize("gone", ["photos/cat/1.jpg", "photos/dog/3.png"])
def test_a_photo_that_is_gone_is_an_error_of_its_sample(
    server: ObjectServer, gone: str, tmp_path: Path
) -> None:
    with opened(server, cache=tmp_path / "cache") as dataset:
        server.delete(gone)
        with pytest.raises(ImageError, match="there is no such object"):
            pixels_by_row(dataset)
        assert len(pixels_by_row(dataset, on_error="skip")) == ROWS - 1
        # It is not kept in the cache that it was gone.
        server.put(gone, photos()[gone])
        assert len(pixels_by_row(dataset, on_error="skip")) == ROWS


def test_a_server_that_fails_for_a_while_is_asked_again(server: ObjectServer) -> None:
    server.fail("photos/cat/1.jpg", 503, 2)
    with opened(server) as dataset:
        assert len(pixels_by_row(dataset)) == ROWS


def test_a_server_that_refuses_a_photo_ends_the_run(server: ObjectServer) -> None:
    with opened(server) as dataset:
        server.fail("photos/cat/1.jpg", 403, 99)
        with pytest.raises(fastio.StoreError, match=r"cat/1\.jpg"):
            pixels_by_row(dataset, on_error="skip")


def test_many_photos_are_requested_at_a_time(tmp_path: Path) -> None:
    data = photo(1)
    objects = {f"photos/{number % 2}/{number:04d}.jpg": data for number in range(600)}
    with object_server(objects, latency_s=0.05) as server, opened(server) as dataset:
        pixels_by_row(dataset, num_workers=2)
        assert server.most_at_once() >= 32


def test_a_dataset_that_is_pickled_reads_the_same_versions(server: ObjectServer) -> None:
    with opened(server) as dataset:
        copy = pickle.loads(pickle.dumps(dataset))
    server.requests()
    assert copy.fingerprint == dataset.fingerprint
    assert (copy[0][0] == dataset[0][0]).all()
    assert not [request for request in server.requests() if request.startswith("LIST")]


def test_a_kept_listing_is_used_as_long_as_it_is_asked_for(
    server: ObjectServer, tmp_path: Path
) -> None:
    options = {**server.options, "listing_s": 3600}

    def lists() -> int:
        server.requests()
        with fastio.open(
            server.url + "/photos", storage_options=options, cache=tmp_path / "cache"
        ) as dataset:
            assert len(dataset) == ROWS
        return sum(request.startswith("LIST") for request in server.requests())

    first = lists()
    assert lists() == first - 1
    options["listing_s"] = 0
    assert lists() == first


def test_ranks_share_a_listing_of_their_own_job_only(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert 0 < stored_files._launched_s() <= time.time()

    def lists() -> int:
        server.requests()
        fastio.open(
            server.url + "/photos", storage_options=server.options, cache=tmp_path / "cache"
        ).close()
        return sum(request.startswith("LIST") for request in server.requests())

    first = lists()
    monkeypatch.setattr(stored_files, "_launched_s", lambda: 0.0)
    assert lists() == first - 1
    began = time.time()  # a job whose launcher begins now
    monkeypatch.setattr(stored_files, "_launched_s", lambda: began)
    assert lists() == first
    assert lists() == first - 1


def test_a_list_of_urls_is_images_without_labels(server: ObjectServer) -> None:
    urls = [f"{server.url}/photos/dog/{number}.jpg" for number in (2, 0)]
    with fastio.Loader(
        fastio.open(urls, storage_options=server.options), 2, transforms=RESIZE
    ) as loader:
        (images,) = loader
        assert images.shape == (2, 3, 16, 16)
        assert (loader.dataset[1] == opened(server)[23][0]).all()


def test_a_list_of_urls_with_labels(server: ObjectServer) -> None:
    samples = [(f"{server.url}/photos/dog/{number}.jpg", number % 2) for number in (2, 1)]
    options = {"storage_options": server.options}
    with fastio.FolderDataset.from_samples(samples, ["even", "odd"], **options) as dataset:
        assert [label for _, label in dataset] == [0, 1]
    with pytest.raises(SourceNotFound, match="there is no such object"):
        fastio.FolderDataset.from_samples([(server.url + "/none.jpg", 0)], ["a"], **options)
    with pytest.raises(fastio.SchemaError, match="one bucket"):
        fastio.FolderDataset.from_samples([*samples, ("s3://other/a.jpg", 0)], ["a"], **options)


def test_sounds_of_a_folder_are_decoded(server: ObjectServer, tmp_path: Path) -> None:
    for row in range(30):
        server.put(f"sounds/{row:02d}.wav", sound(row))
    url = server.url + "/sounds"
    cache = tmp_path / "cache"
    with fastio.Loader(
        fastio.open(url, storage_options=server.options, cache=cache),
        4,
        transforms={"audio": fastio.AudioDecode(length=400, dtype="int16")},
    ) as loader:
        server.requests()
        for _ in range(2):
            found = [int(clip[0, 0]) for batch in loader for clip in batch]
            assert found == list(range(30))
    asked = server.requests()
    assert len(asked) == len(set(asked)) == 30


def test_commands_take_a_folder_behind_a_url(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.sources import check, describe
    from tests.support import contents

    url = server.url + "/photos"
    about = describe(url, storage_options=server.options)
    assert (about["dataset"], about["rows"]) == ("folder", ROWS)

    class Progress:
        def __call__(self, *_: Any) -> Progress:
            return self

        def __enter__(self) -> Any:
            return lambda count: None

        def __exit__(self, *_: Any) -> None:
            pass

    assert check(url, deep=True, storage_options=server.options, progress=Progress()).all_well
    fastio.pack(url, tmp_path / "there", storage_options=server.options)
    fastio.pack(local(tmp_path), tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_pack_leaves_out_photos_that_are_gone(server: ObjectServer, tmp_path: Path) -> None:
    with opened(server) as dataset:
        server.delete("photos/dog/5.jpg")
        fastio.pack(dataset, tmp_path / "packed", on_error="skip")
    assert len(fastio.open(tmp_path / "packed")) == ROWS - 1


def test_a_resumed_pack_does_not_fetch_what_was_packed(
    server: ObjectServer, tmp_path: Path
) -> None:
    bad = "photos/dog/15.jpg"
    server.put(bad, b"no photo")
    options = {"storage_options": server.options, "shard_size": "8KiB", "codec": "jpeg"}
    with pytest.raises(ImageError):
        pack(server.url + "/photos", tmp_path / "out", workers=1, **options)
    assert list((tmp_path / "out").glob("shard-*.arrow"))
    server.put(bad, photos()[bad])
    server.requests()
    report = pack(server.url + "/photos", tmp_path / "out", resume=True, **options)
    assert report.rows == ROWS
    asked = server.requests()
    assert f"GET {bad}" in asked
    assert "GET photos/cat/0.jpg" not in asked


def test_large_folders_are_listed_by_their_folders_in_few_requests() -> None:
    with object_server() as server:
        server.make("data/train/", 40, 300)
        server.make("data/val/", 2, 10)
        server.requests()
        with open_store(server.url + "/data", server.options) as store:
            objects = list_objects(store)
        assert len(set(objects.names)) == len(objects) == 12020
        assert len(server.requests()) <= 60


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"photos/1.jpg": b"x"}, "Couldn't find any class folder"),
        ({"photos/cat/1.jpg": b"x", "photos/dog/1.txt": b"x"}, "no valid file for the classes dog"),
        ({"photos/cat/1.txt": b"x"}, "has no manifest"),
        ({}, "has no manifest"),
    ],
)
def test_a_folder_that_is_none_of_images_is_an_error(
    objects: dict[str, bytes], message: str
) -> None:
    with object_server(objects) as server, pytest.raises(fastio.FastioError, match=message):
        opened(server)


def test_a_folder_that_cannot_be_listed_says_why(s3: S3, tmp_path: Path) -> None:
    bucket, options = s3.bucket("unlisted"), s3.options()
    s3.put("unlisted", "photos/cat//1.jpg", photo(1))
    s3.put("unlisted", "photos/dog/1.jpg", photo(2))
    for url, why in ((f"{bucket}/photos", "empty path segment"), (f"{bucket}-no", "NoSuchBucket")):
        with pytest.raises(StoreError, match=f"{url} cannot be listed: .*{why}"):
            fastio.open(url, storage_options=options)
        with pytest.raises(StoreError, match=f"{url} cannot be listed: .*{why}"):
            pack(url, tmp_path / "packed", storage_options=options)


def test_a_cache_can_be_filled_before_training(server: ObjectServer, tmp_path: Path) -> None:
    from fastio.stage import warm

    url, cache = server.url + "/photos", tmp_path / "cache"
    server.fail("photos/cat/1.jpg", 404, 1)
    report = warm(url, cache, storage_options=server.options)
    assert any("cat/1.jpg" in problem for problem in report.damaged)
    assert warm(url, cache, storage_options=server.options).rows_staged == ROWS
    server.requests()
    with opened(server, cache=cache) as dataset:
        pixels_by_row(dataset)
    assert not [request for request in server.requests() if ".jpg" in request]


def test_packing_a_folder_that_a_web_server_does_not_list_says_so(tmp_path: Path) -> None:
    with (
        http_folder(tmp_path) as url,
        pytest.raises(DatasetNotFound, match="web server lists no folder of images"),
    ):
        pack(f"{url}/photos/", tmp_path / "packed")


def test_text_behind_a_url_must_be_copied_before_it_is_packed(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="must be local"):
        pack("http://127.0.0.1:9/text/", tmp_path / "packed", tokenizer="bytes")
