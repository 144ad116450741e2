"""Folders that web servers list as pages of links are opened as folders of images."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import DatasetNotFound, SourceNotFound
from fastio.sources.stored_files import of_urls
from fastio.store import index_pages, list_objects, open_store
from fastio.store.retry import Permanent
from tests.servers import http_folder
from tests.test_stored_folders import CLASSES, ROWS, local, pixels_by_row

NGINX = """<html><head><title>Index of /photos/</title></head><body><h1>Index of /photos/</h1><hr>
<pre><a href="../">../</a>
<a href="a%20b/">a b/</a>      02-Nov-2026 10:00   -
<a href="gr%C3%B6%C3%9Fe.jpg">gr..&gt;</a>  02-Nov-2026 10:00  1234
</pre><hr></body></html>"""
APACHE = """<html><head><title>Index of /photos</title></head><body><table>
<tr><th><a href="?C=N;O=D">Name</a></th></tr>
<tr><td><a href="/">Parent Directory</a></td></tr>
<tr><td><a href="1.jpg">1.jpg</a></td></tr><tr><td><a href="cat/">cat/</a></td></tr>
<tr><td><a href="http://other.example/2.jpg">2</a><a href="/photos2/3.jpg">3</a>
<a href="cat/4.jpg">4</a><a href="%2e%2e/5.jpg">5</a><a href="6%2f7.jpg">6</a></td></tr>
</table></body></html>"""


@contextmanager
def python_server(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The URL of a folder that Python's http.server serves, and the paths that are asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *rest: Any) -> None:
            asked.append(f"{self.command} {self.path}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def level(page: str) -> tuple[list[str], list[str]]:
    return index_pages.level(lambda folder: page.encode(), "top")


def test_links_to_files_and_folders_in_the_folder_count() -> None:
    assert level(NGINX) == (["top/a b"], ["top/größe.jpg"])
    assert level(APACHE) == (["top/cat"], ["top/1.jpg"])


def test_a_page_that_is_no_listing_is_not_searched() -> None:
    page = "<html><title>Photos of cats</title><a href='1.jpg'>1</a></html>"
    with pytest.raises(Permanent, match="does not list"):
        level(page)


def test_folders_that_contain_themselves_end() -> None:
    page = "<title>Index of /</title><a href='again/'>again</a>"
    with pytest.raises(Permanent, match="links may form a cycle"):
        list(index_pages.pages(lambda folder: page.encode(), ""))


@pytest.mark.parametrize("options", [None, {"headers": {"x-own": "1"}}], ids=["plain", "headers"])
def test_a_folder_behind_python_s_server_is_a_folder_of_images(
    tmp_path: Path, options: dict[str, Any] | None
) -> None:
    folder = local(tmp_path)
    here = fastio.open(folder)
    with (
        python_server(tmp_path) as (url, asked),
        fastio.open(f"{url}/photos", storage_options=options) as there,
    ):
        assert len(there) == ROWS
        assert there.classes == tuple(CLASSES)
        names = [there.paths.relative(row) for row in range(ROWS)]
        assert names == [here.paths.relative(row) for row in range(ROWS)]
        assert not any(path.endswith("/ HTTP/1.1") for path in asked)
        expected, found = pixels_by_row(here), pixels_by_row(there)
    assert all(np.array_equal(found[row], expected[row]) for row in expected)
    assert not any(path.split(" ")[1] == "/" for path in asked)  # nothing above was asked for


def test_sizes_are_asked_for_of_wanted_files_only(tmp_path: Path) -> None:
    local(tmp_path)
    with python_server(tmp_path) as (url, asked):
        store = open_store(f"{url}/photos")
        found = list_objects(store, lambda name: name.endswith(".jpg"))
        assert len(found) == ROWS - len(CLASSES)
        assert not any(path.startswith("HEAD") and "notes.txt" in path for path in asked)


def test_a_folder_of_pages_without_images_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a")
    with (
        python_server(tmp_path) as (url, _),
        pytest.raises(DatasetNotFound, match=r"no manifest\.arrow"),
    ):
        fastio.open(f"{url}/text")


def test_a_folder_of_tars_is_found_by_its_page(tmp_path: Path) -> None:
    names = list(local(tmp_path).rglob("*.jpg"))[:6]
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "a.tar", "w") as tar:
        for number, path in enumerate(names):
            tar.add(path, f"{number}.jpg")
    # Tars are read by ranges, which Python's own server does not have.
    with http_folder(tmp_path, python=True) as url, fastio.open(f"{url}/tars") as dataset:
        assert len(dataset) == len(names)


@pytest.mark.parametrize("page", ["<title>My photos</title>", None])
def test_urls_of_a_server_that_lists_nothing_are_asked_for_one_by_one(
    page: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.sources.stored_files._MOST_ASKED", 2)
    sizes = {f"photos/{number}.jpg": 10 + number for number in range(4)}
    (tmp_path / "photos").mkdir()
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    if page is None:
        monkeypatch.setattr(SimpleHTTPRequestHandler, "list_directory", _not_found)
    else:
        (tmp_path / "photos" / "index.html").write_text(page)
    with python_server(tmp_path) as (url, _):
        urls = [f"{url}/{name}" for name in (*sizes, "photos/none.jpg")]
        found = of_urls(urls, may_lack=True)
        with pytest.raises(SourceNotFound, match=r"photos/none\.jpg: there is no such object"):
            of_urls(urls)
    assert found.objects.sizes.tolist() == [*sizes.values(), -1]


def test_urls_that_a_page_of_links_hides_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.sources.stored_files._MOST_ASKED", 2)
    names = ["photos/0.jpg", "photos/1.jpg", "photos/hidden.jpg", "photos/2.jpg"]
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(10 + number))
    links = "".join(f'<a href="{name[7:]}">{name[7:]}</a>' for name in names if "hid" not in name)
    page = f"<html><title>Index of /photos/</title>{links}</html>"
    (tmp_path / "photos" / "index.html").write_text(page)
    with python_server(tmp_path) as (url, asked):
        urls = [f"{url}/{name}" for name in (*names, "photos/none.jpg", names[2])]
        found = of_urls(urls, may_lack=True)
    assert found.objects.sizes.tolist() == [10, 11, 12, 13, -1, 12]
    assert asked.count("HEAD /photos/hidden.jpg") == 1


def _not_found(handler: SimpleHTTPRequestHandler, path: Any) -> None:
    handler.send_error(404)


def test_a_link_that_is_no_url_is_ignored() -> None:
    page = "<title>Index of /top/</title><a href='//[x'>x</a><a href='1.jpg'>1</a>"
    assert level(page) == ([], ["top/1.jpg"])
