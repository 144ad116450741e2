"""Bytes of one version of an object, or SourceChanged; from every backend and kind of server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastio import SourceChanged, SourceNotFound
from fastio.store import Stamp, Store, open_store
from fastio.store.versions import Marks
from tests.servers import S3, http_folder
from tests.web_server import Answer, Asked, WebServer

OLD, NEW = b"old version!" * 100, b"new version!" * 100


@pytest.fixture(params=["obstore", "fsspec", "receiver"])
def opened(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Store, Callable[..., bytes]]]:
    """Opens a store, and how it reads: by a library, or by the receiver of plain http."""

    def open_with(url: str, options: Any = None, **limits: Any) -> tuple[Store, Any]:
        if request.param == "fsspec":
            monkeypatch.setattr("fastio.store.backends._try_obstore", lambda *_: (None, ""))
        else:
            pytest.importorskip("obstore", reason="it is tested")
        store = open_store(url, {**(options or {}), **limits})
        assert store.backend == ("fsspec" if request.param == "fsspec" else "obstore")

        def read(name: str, offset: int, length: int, expect: Stamp | None) -> bytes:
            if request.param != "receiver":
                return bytes(store.read(name, offset, length, expect=expect))
            memory = bytearray(length)
            store.read_into(name, offset, [memoryview(memory)], expect=expect)
            return bytes(memory)

        return store, read

    return open_with


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer({"x": OLD}) as running:
        yield running


@pytest.mark.parametrize("obeys", [True, False], ids=["obeyed", "ignored"])
@pytest.mark.parametrize("versions", ["etag", "weak", "modified"])
def test_an_object_that_was_replaced_by_one_of_its_size_has_changed(
    server: WebServer, opened: Any, versions: str, obeys: bool
) -> None:
    server.versions, server.obeys = versions, obeys
    store, read = opened(server.url)
    stamp = store.stat("x")
    assert read("x", 5, 7, stamp) == OLD[5:12]
    server.replace("x", NEW)
    count = len(server.asked)
    with pytest.raises(SourceChanged) as caught:
        read("x", 5, 7, stamp)
    assert len(server.asked) - count <= 2  # the range, and what there is now: no attempts
    message = str(caught.value)
    assert f"{server.url}/x was replaced" in message
    assert stamp.version in message
    assert store.stat("x").version in message
    assert read("x", 5, 7, store.stat("x")) == NEW[5:12]
    assert read("x", 5, 7, None) == NEW[5:12]


def test_without_versions_the_size_is_one(server: WebServer, opened: Any) -> None:
    server.versions = ""
    store, read = opened(server.url)
    stamp = store.stat("x")
    assert stamp == Stamp(len(OLD), "")
    assert "of a version that the store does not report" in str(stamp)
    server.replace("x", OLD[:-1])
    with pytest.raises(SourceChanged, match=r"1,200 bytes.*1,199 bytes"):
        read("x", 5, 7, stamp)
    with pytest.raises(SourceChanged):  # beyond its end, which is no range of it any more
        read("x", 1190, 10, stamp)


def test_only_strong_etags_are_asked_for(server: WebServer, opened: Any) -> None:
    store, read = opened(server.url)
    stamp = store.stat("x")
    read("x", 5, 7, stamp)
    assert server.asked[-1].headers["if-match"] == stamp.version
    server.versions = "weak"
    read("x", 5, 7, store.stat("x"))
    assert "if-match" not in server.asked[-1].headers


def test_an_etag_that_became_weak_on_the_way_is_the_same(server: WebServer, opened: Any) -> None:
    server.obeys = False
    store, read = opened(server.url)
    stamp = store.stat("x")
    server.versions = "weak"  # as behind a proxy that compresses
    assert read("x", 5, 7, stamp) == OLD[5:12]


def test_an_answer_without_its_version_is_believed_between_two_that_agree(
    server: WebServer, opened: Any
) -> None:
    server.obeys = False

    def hide(asked: Asked, answer: Answer) -> None:
        if asked.method == "GET":
            answer.headers.pop("ETag", None)

    server.lie = hide
    store, read = opened(server.url)
    stamp = store.stat("x")
    assert read("x", 5, 7, stamp) == OLD[5:12]
    assert [asked.method for asked in server.asked[-2:]] == ["GET", "HEAD"]
    server.replace("x", NEW)
    with pytest.raises(SourceChanged):
        read("x", 5, 7, stamp)


def test_an_answer_of_a_wrong_version_is_asked_for_again(server: WebServer, opened: Any) -> None:
    """One of several servers behind a name is late, or a proxy mixes answers up."""
    left = 2

    def lie(asked: Asked, answer: Answer) -> None:
        nonlocal left
        if asked.method == "GET" and left:
            left -= 1
            answer.headers["ETag"], answer.body = '"another"', NEW[5:12]

    store, read = opened(server.url)
    stamp = store.stat("x")
    server.lie = lie
    assert read("x", 5, 7, stamp) == OLD[5:12]
    assert left == 0


def test_an_object_that_was_deleted_is_not_there(server: WebServer, opened: Any) -> None:
    store, read = opened(server.url)
    stamp = store.stat("x")
    del server.objects["x"]
    with pytest.raises(SourceNotFound):
        read("x", 5, 7, stamp)


@pytest.mark.parametrize("python", [False, True], ids=["nginx", "python"])
def test_real_servers_tell_versions(tmp_path: Path, opened: Any, python: bool) -> None:
    (tmp_path / "x").write_bytes(OLD)
    with http_folder(tmp_path, python=python) as url:
        store, read = opened(url)
        stamp = store.stat("x")
        assert stamp.version
        assert read("x", 5, 7, stamp) == OLD[5:12]
        (tmp_path / "x").write_bytes(NEW + b"!")
        with pytest.raises(SourceChanged):
            read("x", 5, 7, stamp)


def test_s3_tells_versions_and_lists_them(s3: S3) -> None:
    pytest.importorskip("obstore", reason="s3fs is not installed")
    name = f"bucket-{uuid.uuid4().hex[:16]}"
    store = open_store(s3.bucket(name), s3.options())
    s3.put(name, "x", OLD)
    stamp = store.stat("x")
    assert store.list() == [("x", stamp)]
    assert bytes(store.read("x", 5, 7, expect=stamp)) == OLD[5:12]
    assert [bytes(part) for part in store.read_ranges("x", [(0, 3)], expect=stamp)] == [b"old"]
    s3.put(name, "x", NEW)
    with pytest.raises(SourceChanged, match=f"{name}/x was replaced"):
        store.read("x", 5, 7, expect=stamp)


def test_file_systems_without_headers_are_asked_after_each_read() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.write("x", OLD)
    stamp = store.stat("x")
    assert store.list() == [("x", stamp)]
    assert bytes(store.read("x", 5, 7, expect=stamp)) == OLD[5:12]
    store.write("x", NEW)
    with pytest.raises(SourceChanged):
        store.read("x", 5, 7, expect=stamp)


@pytest.mark.parametrize(
    ("info", "stamp"),
    [
        ({"size": 1, "e_tag": '"a"'}, Stamp(1, '"a"')),
        ({"size": 1, "ETag": "a"}, Stamp(1, '"a"')),
        ({"size": 1, "etag": 'W/"a"', "version": "2"}, Stamp(1, 'W/"a"')),
        ({"size": 1, "generation": 17}, Stamp(1, "version 17")),
        ({"size": 1, "mtime": 1.5}, Stamp(1, "modified 1970-01-01T00:00:01.500000+00:00")),
        (
            {"size": 1, "updated": "2026-11-27T10:00:00.125Z"},
            Stamp(1, "modified 2026-11-27T10:00:00.125000+00:00"),
        ),
        ({"size": 1}, Stamp(1, "")),
    ],
)
def test_the_best_mark_is_the_stamp(info: dict[str, Any], stamp: Stamp) -> None:
    assert Marks.of_info(info).stamp() == stamp
