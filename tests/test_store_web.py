"""Web servers, whatever they answer: ranges, redirects, credentials and proxies mean one thing."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastio import StoreError
from fastio.store import open_store
from fastio.store.receive import Receiver
from fastio.store.retry import Limits
from fastio.store.urls import proxy_of
from tests.web_server import Answer, Asked, TunnelProxy, WebServer, certificate

DATA = bytes(range(256)) * 4
SHORT = {"deadline_s": 0.5, "timeout_s": 0.5}


@pytest.fixture(params=["obstore", "fsspec"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fsspec":
        monkeypatch.setattr("fastio.store.backends._try_obstore", lambda *_: (None, ""))
    else:
        pytest.importorskip("obstore", reason="it is tested")
    return str(request.param)


@pytest.fixture
def fsspec_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.store.backends._try_obstore", lambda *_: (None, ""))


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer({"x": DATA}) as running:
        yield running


@pytest.fixture
def other() -> Iterator[WebServer]:
    with WebServer({"x": DATA}) as running:
        yield running


def set_header(name: str, value: str) -> Any:
    def lie(asked: Asked, answer: Answer) -> None:
        if asked.method == "GET":
            answer.headers[name] = value

    return lie


def whole(asked: Asked, answer: Answer) -> None:
    if asked.method == "GET":
        answer.status, answer.body = 200, DATA
        answer.headers.pop("Content-Range", None)


def several(asked: Asked, answer: Answer) -> None:
    if asked.method == "GET":
        part = b"--b\r\nContent-Range: bytes 5-14/1024\r\n\r\n" + answer.body + b"\r\n--b--\r\n"
        answer.headers["Content-Type"] = "multipart/byteranges; boundary=b"
        answer.headers.pop("Content-Range", None)
        answer.body = part


def longer(asked: Asked, answer: Answer) -> None:
    if asked.method == "GET":
        answer.body += b"!"


@pytest.mark.parametrize(
    "lie",
    [
        set_header("Content-Range", "bytes 6-15/1024"),
        set_header("Content-Range", "bytes 5-13/1024"),
        set_header("Content-Range", "items 5-14/1024"),
        set_header("Content-Range", ""),
        whole,
        several,
        longer,
    ],
    ids=["elsewhere", "shorter", "items", "missing", "whole", "several", "longer"],
)
def test_what_is_not_the_range_that_was_asked_for_is_an_error(
    server: WebServer, backend: str, lie: Any
) -> None:
    server.lie = lie
    store = open_store(server.url, SHORT)
    with pytest.raises(StoreError, match=f"{server.url}/x cannot be read"):
        store.read("x", 5, 10)


def test_what_is_encoded_unasked_is_refused(server: WebServer, fsspec_only: None) -> None:
    server.lie = set_header("Content-Encoding", "gzip")
    with pytest.raises(StoreError, match=r"is encoded \(gzip\)"):
        open_store(server.url).read("x", 5, 10)


def test_a_whole_that_is_the_range_is_taken(server: WebServer, fsspec_only: None) -> None:
    server.lie = whole
    store = open_store(server.url, SHORT)
    assert store.read("x", 0, len(DATA)) == DATA
    assert store.read("x") == DATA


def test_a_wrong_range_may_be_right_next_time(server: WebServer, backend: str) -> None:
    left = 1

    def lie(asked: Asked, answer: Answer) -> None:
        nonlocal left
        if left:
            left -= 1
            answer.headers["Content-Range"] = "bytes 6-15/1024"

    server.lie = lie
    store = open_store(server.url)
    assert store.read("x", 5, 10) == DATA[5:15]
    assert store.transfers.retries == 1


def test_a_server_that_does_not_answer_head_tells_its_size(
    server: WebServer, fsspec_only: None
) -> None:
    def lie(asked: Asked, answer: Answer) -> None:
        if asked.method == "HEAD":
            answer.status, answer.headers = 403, {}  # as of URLs that are signed for GET

    server.lie = lie
    server.objects["empty"] = b""
    store = open_store(server.url)
    assert store.stat("x").size == len(DATA)
    assert store.stat("empty").size == 0


# --- Redirects and what the user adds to requests -------------------------------------------------


@pytest.mark.parametrize("where", ["headers", "client_kwargs", "client_options"])
def test_headers_of_the_user_go_to_no_other_host(
    server: WebServer, other: WebServer, where: str
) -> None:
    server.redirects["y"] = f"{other.url}/x"
    headers = {"Authorization": "Bearer secret-1", "X-Key": "secret-2", "Cookie": "secret-3=1"}
    options: dict[str, Any] = {
        "headers": {"headers": headers},
        "client_kwargs": {"client_kwargs": {"headers": headers}},
        "client_options": {"client_options": {"default_headers": headers}},
    }[where]
    store = open_store(server.url, options)
    assert store.backend == "fsspec"  # obstore would send X-Key along
    assert store.read("y", 5, 10) == DATA[5:15]
    here, there = server.asked[-1].headers, other.asked[-1].headers
    assert (here["authorization"], here["x-key"]) == ("Bearer secret-1", "secret-2")
    assert "secret" not in str(there)
    assert there["range"] == "bytes=5-14"


def test_a_query_of_the_user_goes_to_no_other_host(server: WebServer, other: WebServer) -> None:
    server.redirects["y"] = f"{other.url}/x"
    store = open_store(f"{server.url}?sig=secret")
    assert store.read("y", 5, 10) == DATA[5:15]
    assert server.asked[-1].target == "/y?sig=secret"
    assert "secret" not in str(other.asked)


def test_credentials_of_a_url_are_basic_and_stay_with_their_host(
    server: WebServer, other: WebServer, backend: str
) -> None:
    server.needs = "Basic " + base64.b64encode(b"me:p@ss").decode()
    server.redirects["y"] = f"{other.url}/x"
    url = server.url.replace("://", "://me:p%40ss@")
    store = open_store(url)
    assert not Receiver.serves(url)
    assert store.backend == backend
    assert store.read("x", 5, 10) == DATA[5:15]
    memory = bytearray(10)
    store.read_into("x", 5, [memoryview(memory)])
    assert memory == DATA[5:15]
    assert store.stat("x").size == len(DATA)
    assert store.read("y", 5, 10) == DATA[5:15]
    assert "authorization" not in other.asked[-1].headers
    with pytest.raises(StoreError) as caught:
        open_store(server.url.replace("://", "://me:wrong-secret@"), SHORT).read("x", 5, 10)
    assert "secret" not in str(caught.value)


def test_redirects_on_one_host_keep_credentials(server: WebServer, backend: str) -> None:
    server.needs = "Basic " + base64.b64encode(b"me:pass").decode()
    server.redirects["y"] = "/x"
    server.lie = None
    store = open_store(server.url.replace("://", "://me:pass@"))
    server.redirects["z"] = f"{server.url}/x"
    assert store.read("y", 5, 10) == DATA[5:15]
    assert store.read("z", 5, 10) == DATA[5:15]


def test_https_is_not_followed_to_http(other: WebServer, backend: str, tmp_path: Path) -> None:
    options = {"client_options": {"allow_invalid_certificates": True}}
    with WebServer({"x": DATA}, certificate=certificate(tmp_path)) as server:
        server.redirects["y"] = f"{other.url}/x"
        store = open_store(server.url, options)
        assert store.backend == backend
        assert store.read("x", 5, 10) == DATA[5:15]
        with pytest.raises(StoreError, match="redirects from https to http"):
            store.read("y", 5, 10)
        assert len(server.asked) == 2  # no attempts
    assert not other.asked


def test_redirects_end(server: WebServer, backend: str) -> None:
    server.redirects["y"] = "/y"
    with pytest.raises(StoreError, match=r"redirect"):
        open_store(server.url, SHORT).read("y", 5, 10)


# --- Proxies --------------------------------------------------------------------------------------


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_the_environment_s_proxy_is_asked(
    server: WebServer, other: WebServer, backend: str, no_proxies: Any, name: str
) -> None:
    no_proxies.setenv(name, other.url.replace("://", "://user:secret@"))
    store = open_store(server.url)
    assert store.read("x", 5, 10) == DATA[5:15]
    memory = bytearray(10)
    store.read_into("x", 5, [memoryview(memory)])  # the plain receiver leaves it to the backend
    assert memory == DATA[5:15]
    assert store.stat("x").size == len(DATA)
    assert not server.asked
    assert {asked.target for asked in other.asked} == {f"{server.url}/x"}
    expected = "Basic " + base64.b64encode(b"user:secret").decode()
    assert {asked.headers["proxy-authorization"] for asked in other.asked} == {expected}


@pytest.mark.parametrize("said", ["127.0.0.1", "example.org, 127.0.0.0/8", "*"])
def test_hosts_of_no_proxy_are_asked_directly(
    server: WebServer, other: WebServer, backend: str, no_proxies: Any, said: str
) -> None:
    no_proxies.setenv("http_proxy", other.url)
    no_proxies.setenv("no_proxy", said)
    store = open_store(server.url)
    assert store.read("x", 5, 10) == DATA[5:15]
    assert Receiver.serves(server.url)
    assert len(server.asked) == 1
    assert not other.asked


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("http://data.example.org/x", "", "http://p:1"),
        ("https://data.example.org/x", "", None),
        ("http://data.example.org/x", "example.org", None),
        ("http://data.example.org:81/x", "data.example.org:81", None),
        ("http://data.example.org/x", "other.org", "http://p:1"),
        ("http://10.1.2.3/x", "10.0.0.0/8", None),
        ("http://11.1.2.3/x", "10.0.0.0/8", "http://p:1"),
        ("http://user:word@10.1.2.3:81/x", "10.1.2.3", None),
    ],
)
def test_which_proxy_a_url_has(no_proxies: Any, url: str, no_proxy: str, proxy: Any) -> None:
    no_proxies.setenv("http_proxy", "p:1")
    no_proxies.setenv("no_proxy", no_proxy)
    assert proxy_of(url) == proxy


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[WebServer]:
    with WebServer({"x": DATA}, certificate=certificate(tmp_path)) as running:
        yield running


def open_insecure(url: str, **limits: float) -> Any:
    return open_store(url, {"client_options": {"allow_invalid_certificates": True}, **limits})


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "all_proxy"])
def test_https_goes_through_a_tunnel_of_the_environment_s_proxy(
    secure: WebServer, backend: str, no_proxies: Any, name: str
) -> None:
    with TunnelProxy() as proxy:
        no_proxies.setenv(name, proxy.url.replace("://", "://user:secret@"))
        store = open_insecure(secure.url)
        assert store.backend == backend
        assert store.read("x", 5, 10) == DATA[5:15]
        assert store.stat("x").size == len(DATA)
    assert {asked.target for asked in secure.asked} == {"/x"}
    assert not any("proxy-authorization" in asked.headers for asked in secure.asked)
    said = "Basic " + base64.b64encode(b"user:secret").decode()
    assert set(proxy.tunnels) == {(secure.url.removeprefix("https://"), said)}


@pytest.mark.parametrize(
    ("name", "excluded"),
    [("http_proxy", ""), ("https_proxy", "127.0.0.1"), ("HTTPS_PROXY", "127.0.0.0/8")],
)
def test_https_without_a_proxy_of_its_own_is_direct(
    secure: WebServer, backend: str, no_proxies: Any, name: str, excluded: str
) -> None:
    with TunnelProxy() as proxy:
        no_proxies.setenv(name, proxy.url)
        no_proxies.setenv("no_proxy", excluded)
        assert open_insecure(secure.url).read("x", 5, 10) == DATA[5:15]
    assert len(secure.asked) == 1
    assert not proxy.tunnels


@pytest.mark.parametrize("status", [403, 502, 0])
def test_a_proxy_that_opens_no_tunnel_is_a_named_error(
    secure: WebServer, backend: str, no_proxies: Any, status: int
) -> None:
    """The last one never answers CONNECT: what is not bounded by the deadline hangs here."""
    with TunnelProxy(status) as proxy:
        no_proxies.setenv("https_proxy", proxy.url)
        with pytest.raises(StoreError, match=f"{secure.url}/x cannot be read"):
            open_insecure(secure.url, **SHORT).read("x", 5, 10)
    assert not secure.asked


def test_a_proxy_that_nobody_runs_is_a_named_error(
    secure: WebServer, backend: str, no_proxies: Any
) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        no_proxies.setenv("https_proxy", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StoreError, match=f"{secure.url}/x cannot be read"):
            open_insecure(secure.url, **SHORT).read("x", 5, 10)
    assert not secure.asked


# --- The deadline of the plain receiver -----------------------------------------------------------


@pytest.mark.parametrize("drips", ["status line", "headers", "continues", "body"])
def test_an_answer_that_drips_ends_with_the_deadline(drips: str) -> None:
    """Each byte begins a socket's timeout anew; a request's does not."""
    start = {
        "status line": b"",
        "headers": b"HTTP/1.1 206 Partial Content\r\nX-A: ",
        "continues": b"",
        "body": b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9999/10000\r\n"
        b"Content-Length: 10000\r\n\r\n",
    }[drips]
    drop = b"HTTP/1.1 100 Continue\r\n\r\n" if drips == "continues" else b"H"
    sent = 0
    gone = threading.Event()

    def serve(listener: socket.socket) -> None:
        nonlocal sent
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(start)
            while sent < 300 and not gone.wait(0.1):
                try:
                    connection.sendall(drop)
                except OSError:
                    break
                sent += 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        receiver = Receiver(url, Limits(1, 1))
        with pytest.raises(TimeoutError):
            receiver.receive("x", 0, [memoryview(bytearray(10000))], 0.5)
        gone.set()
        thread.join(30)
    assert sent < 300  # which is half a minute's
    assert not receiver._idle
