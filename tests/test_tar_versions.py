"""Tars that are replaced: an error in mid-epoch, and read anew by a later run."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastio
from fastio import ShardCorrupt, SourceChanged, TarDataset
from tests.pictures import jpeg
from tests.servers import S3
from tests.support import open_loader
from tests.web_server import Answer, Asked, WebServer

TARS, SAMPLES = 3, 8


def tar_of(number: int, label: int) -> bytes:
    """A tar of samples that say which version they are of, of the same size for each label."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for index in range(SAMPLES):
            key = f"{number}{index:03}"
            picture = jpeg(40, 56, seed=100 * number + index)
            for name, data in (
                (f"{key}.cls", str(label).encode()),
                (f"{key}.jpg", picture),
                (f"{key}.txt", f"version {label}".encode()),
                (f"{key}.bin", bytes(100_000)),  # so that not all is fetched at the beginning
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


NAMES = [f"train-{number:03}.tar" for number in range(TARS)]
OLD = {name: tar_of(number, 1) for number, name in enumerate(NAMES)}
NEW = {name: tar_of(number, 2) for number, name in enumerate(NAMES)}
PATTERN = "train-{000..002}.tar"


def labels(source: Any, **arguments: Any) -> set[tuple[int, str]]:
    """Every (class, text) of an epoch."""
    with open_loader(source, 4, shuffle=True, seed=0, num_workers=2, **arguments) as loader:
        return {
            (int(label), text)
            for batch in loader
            for label, text in zip(batch["cls"], batch["txt"], strict=True)
        }


def epochs(loader: Any, count: int, seen: set[tuple[int, str]]) -> None:
    """Adds what some epochs have; a loader may have the next one before it is asked for."""
    for _ in range(count):
        for batch in loader:
            seen |= set(zip(batch["cls"].tolist(), batch["txt"], strict=True))


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(dict(OLD)) as running:
        yield running


@pytest.fixture(params=["etag", "weak", "modified", "s3"])
def place(
    request: pytest.FixtureRequest, server: WebServer
) -> tuple[str, dict[str, Any], Callable[[dict[str, bytes]], None]]:
    """The tars in a store, its options, and what puts tars there."""
    if request.param != "s3":
        server.versions = request.param

        def replace(tars: dict[str, bytes]) -> None:
            for name, data in tars.items():
                server.replace(name, data)

        return f"{server.url}/{PATTERN}", {}, replace
    s3: S3 = request.getfixturevalue("s3")
    pytest.importorskip("obstore", reason="s3fs is not installed")
    name = f"tars-{os.urandom(4).hex()}"
    url = s3.bucket(name)

    def put(tars: dict[str, bytes]) -> None:
        for tar, data in tars.items():
            s3.put(name, f"a/{tar}", data)

    put(OLD)
    return f"{url}/a", {"storage_options": s3.options()}, put


@pytest.mark.parametrize("cached", [False, True], ids=["memory", "cache"])
def test_a_later_run_reads_the_tars_that_are_there(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    url, options, replace = place
    if cached:
        options["cache"] = tmp_path / "cache"
    assert {len(data) for data in OLD.values()} == {len(data) for data in NEW.values()}
    assert labels(url, **options) == {(1, "version 1")}
    assert labels(url, **options) == {(1, "version 1")}
    replace(NEW)
    assert labels(url, **options) == {(2, "version 2")}
    replace(OLD)
    assert labels(url, **options) == {(1, "version 1")}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_change_within_an_epoch_is_an_error(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("fastio.stage.lookahead._LEAST_AHEAD_BYTES", 1)
    url, options, replace = place
    with open_loader(url, 2, num_workers=1, on_error=on_error, **options) as loader:
        batches = iter(loader)
        seen = {next(batches)["txt"][0]}
        replace(NEW)
        with pytest.raises(SourceChanged, match=r"train-00\d\.tar was replaced"):
            seen.update(text for batch in batches for text in batch["txt"])
    assert seen == {"version 1"}


def test_another_process_reads_the_same_version_or_none(server: WebServer) -> None:
    with TarDataset(f"{server.url}/{PATTERN}") as dataset:
        sent = pickle.dumps(dataset)
    pickle.loads(sent).close()
    server.replace(NAMES[1], NEW[NAMES[1]])
    with pytest.raises(
        SourceChanged, match="was replaced or written to after another process opened it"
    ):
        pickle.loads(sent)


# --- Here -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "tars").mkdir()
    for name, data in OLD.items():
        (tmp_path / "tars" / name).write_bytes(data)
    return tmp_path / "tars"


def put_new(folder: Path, *, in_place: bool) -> None:
    """Other tars of the same sizes: moved there with the same times, or written over."""
    for name, data in NEW.items():
        path = folder / name
        status = path.stat()
        if in_place:
            path.write_bytes(data)
            # A clock of the file system may stand still between two writes.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
            continue
        fresh = folder.parent / name
        fresh.write_bytes(data)
        os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns))
        fresh.replace(path)


@pytest.mark.parametrize("in_place", [True, False], ids=["written over", "moved there"])
def test_local_tars_have_versions_too(folder: Path, in_place: bool) -> None:
    with fastio.Loader(str(folder), 2, num_workers=1) as loader:
        seen: set[tuple[int, str]] = set()
        epochs(loader, 1, seen)
        put_new(folder, in_place=in_place)
        with pytest.raises(SourceChanged, match="was replaced or written to"):
            epochs(loader, 5, seen)
    assert seen == {(1, "version 1")}
    assert labels(str(folder)) == {(2, "version 2")}


def test_another_process_reads_the_same_local_tars_or_none(folder: Path) -> None:
    with TarDataset(str(folder)) as dataset:
        sent = pickle.dumps(dataset)
    pickle.loads(sent).close()
    put_new(folder, in_place=False)
    with pytest.raises(SourceChanged, match="after another process opened it"):
        pickle.loads(sent)


# --- Headers --------------------------------------------------------------------------------------


def test_a_header_that_comes_damaged_is_fetched_again(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    struck = []

    def flip(asked: Asked, answer: Answer) -> None:
        if asked.method == "GET" and asked.target not in struck and len(answer.body) > 1024:
            struck.append(asked.target)
            damaged = bytearray(answer.body)
            damaged[3] ^= 1  # of the first file's name
            answer.body = bytes(damaged)

    server.lie = flip
    with TarDataset(f"{server.url}/{PATTERN}") as dataset:
        assert [dataset[row]["__key__"] for row in (0, SAMPLES)] == ["0000", "1000"]
        assert len(struck) == TARS
        assert dataset.store.transfers.refetched == TARS


def test_a_header_that_is_damaged_at_rest_is_named(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    damaged = bytearray(OLD[NAMES[0]])
    damaged[3] ^= 1
    server.objects = {NAMES[0]: bytes(damaged)}
    with pytest.raises(ShardCorrupt, match=rf"{NAMES[0]} is not a tar"):
        TarDataset(f"{server.url}/{NAMES[0]}")
    assert sum(asked.method == "GET" for asked in server.asked) == 2
