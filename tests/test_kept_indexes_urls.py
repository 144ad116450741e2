"""Indexes of JPEGs behind URLs that a process leaves to the next one."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastio
from fastio import _native
from fastio.cache import default_cache, kept_source
from fastio.engine import jpeg_indexes
from tests import jpeg_index
from tests.object_server import ObjectServer, object_server
from tests.test_jpeg_index import CROP, photo, same
from tests.test_kept_indexes import COUNT, change, of_records, records

_PATIENCE_S = 120.0  # for what is being stored when a loader is closed, however busy the machine is
KINDS = ("folder", "list", "tar")
Images = list[NDArray[np.uint8]]


def tar_of(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for number, content in enumerate(files.values()):
            for suffix, member in (("jpg", content), ("cls", b"0")):
                about = tarfile.TarInfo(f"{number:02}.{suffix}")
                about.size = len(member)
                tar.addfile(about, io.BytesIO(member))
    return data.getvalue()


FILES = {f"photos/a/{number:02}.jpg": photo(number) for number in range(COUNT)}


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectServer]:
    with object_server({**FILES, "tars/0.tar": tar_of(FILES)}) as server:
        yield server


@pytest.fixture
def server(running: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """Photos behind URLs, and an empty cache folder of the user. Even few indexes are stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(jpeg_indexes, "_LEAST_BYTES", 1)
    monkeypatch.setattr(jpeg_indexes, "PATIENCE_S", _PATIENCE_S)
    return running


def sources(server: ObjectServer) -> dict[str, Any]:
    return {
        "folder": f"{server.url}/photos",
        "list": [f"{server.url}/{name}" for name in FILES],
        "tar": f"{server.url}/tars/0.tar",
    }


def epochs(server: ObjectServer, kind: str, count: int, cache: Any = None) -> Images:
    """The images of some epochs, in the order of the rows, of a loader in a new run."""
    found: Images = []
    options = {"storage_options": server.options, "cache": cache}
    with fastio.open(sources(server)[kind], **options) as dataset:
        name = dataset.schema.image_fields[0]
        with fastio.Loader(dataset, 4, transforms={name: CROP}, seed=5, num_workers=2) as loader:
            for _ in range(count):
                found.append(np.concatenate([image_of(batch, name) for batch in loader]))
    return found


def fingerprint(server: ObjectServer, kind: str) -> str:
    """That of the kept indexes."""
    with fastio.open(sources(server)[kind], storage_options=server.options) as dataset:
        place = jpeg_indexes.KeptIndexes(dataset, None)._place
    with default_cache() as cache:
        _, source = kept_source(cache, "indexes of JPEGs", *place)
    return source.key.rpartition("-")[0]


def kept_pieces(cache: fastio.Cache, key: str) -> int:
    folder = cache.folder()
    with folder.index.reading() as db:
        found = db.execute("SELECT url FROM sources WHERE fingerprint = ?", (key,)).fetchall()
    return sum(len(folder.ready(folder.source(url, key, 0, 0, 0))) for (url,) in found)


def image_of(batch: Any, name: str) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = (
        batch[name] if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple) else batch
    ).numpy()
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The images of three epochs of the same photos in a local folder."""
    root = tmp_path_factory.mktemp("local")
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "unused"))
        loader = fastio.Loader(
            root / "photos", 4, transforms={"image": CROP}, seed=5, num_workers=2
        )
        with loader:
            return [np.concatenate([image_of(b, "image") for b in loader]) for _ in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_run_without_a_cache_begins_with_what_is_kept(
    server: ObjectServer, kind: str, expected: Images
) -> None:
    assert same(epochs(server, kind, 3), expected)
    assert same(epochs(server, kind, 3), expected)
    change(of_records(jpeg_index.shifted), which=fingerprint(server, kind))
    assert not same(epochs(server, kind, 1), expected[:1])  # it did begin with that


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_in_a_cache_are_decoded_with_what_is_kept_in_it(
    server: ObjectServer, kind: str, expected: Images, tmp_path: Path
) -> None:
    key = fingerprint(server, kind)
    with fastio.Cache(tmp_path / "cache", pack="never") as cache:
        assert same(epochs(server, kind, 3, cache), expected)
        assert cache.status().datasets
        server.requests()
        assert same(epochs(server, kind, 3, cache), expected)
        asked = server.requests()
        assert not [
            each for each in asked if each.startswith("GET") and each.endswith(("jpg", "tar"))
        ]
        change(of_records(jpeg_index.shifted), cache.path, key)
        assert not same(epochs(server, kind, 1, cache), expected[:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [False, True])
def test_the_second_epoch_uses_the_indexes_of_the_first(
    server: ObjectServer,
    kind: str,
    cached: bool,
    expected: Images,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = []

    def begin(kept: Any, native: Any) -> None:
        engines.append(native)

    monkeypatch.setattr(jpeg_indexes.KeptIndexes, "begin", begin)
    cache = fastio.Cache(tmp_path / "cache", pack="never") if cached else None
    how = {"storage_options": server.options, "cache": cache}
    with fastio.open(sources(server)[kind], **how) as dataset:
        name = dataset.schema.image_fields[0]
        with fastio.Loader(dataset, 4, transforms={name: CROP}, seed=5, num_workers=2) as loader:
            list(loader)
            made = engines[0].unsaved_indexes(all=True)
            assert len(list(records(made))) == COUNT
            wrong = tmp_path / "wrong"
            wrong.write_bytes(of_records(jpeg_index.shifted)(made))
            engines[0].load_indexes(_native.Mapping(str(wrong)))
            second = np.concatenate([image_of(batch, name) for batch in loader])
    assert not same([second], expected[1:2])


def test_a_photo_that_was_replaced_does_not_meet_its_old_index(
    server: ObjectServer, expected: Images
) -> None:
    assert same(epochs(server, "folder", 2), expected[:2])
    names = list(FILES)
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        server.put(name, FILES[other])
    try:
        moved = epochs(server, "folder", 1)
        shutil.rmtree(default_cache().path)
        assert same(moved, epochs(server, "folder", 1))
    finally:
        for name in names:
            server.put(name, FILES[name])
    assert same(epochs(server, "folder", 1), expected[:1])


def test_what_is_kept_is_deleted_with_the_data_of_its_url(
    server: ObjectServer, tmp_path: Path
) -> None:
    with fastio.Cache(tmp_path / "cache", pack="never") as cache:
        key = fingerprint(server, "folder")
        epochs(server, "folder", 1, cache)
        assert kept_pieces(cache, key)
        cache.clear(f"{server.url}/photos")
        assert not kept_pieces(cache, key)


def test_secrets_of_a_url_are_not_kept(server: ObjectServer) -> None:
    url = f"{server.endpoint.replace('//', '//user:geheim@')}/bucket/photos/a/"
    urls = [url + f"{number:02}.jpg?token=verborgen" for number in range(COUNT)]
    with fastio.Loader(urls, 4, transforms={"image": CROP}, num_workers=2) as loader:
        list(loader)
    kept = [path for path in default_cache().path.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        assert b"geheim" not in path.read_bytes()
        assert b"verborgen" not in path.read_bytes()
