"""Ranges received into memory of the caller's: as `read` has them, whatever the server answers."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fastio import SourceNotFound, StoreError
from fastio.store import open_store
from fastio.store.receive import Receiver
from fastio.store.retry import Limits
from tests.servers import FaultProxy, http_folder

DATA = np.random.default_rng(0).bytes(3_000_000)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("served")
    (root / "a").mkdir()
    (root / "a" / "x#1 %.bin").write_bytes(DATA)
    with http_folder(root) as running:
        yield f"{running}/a"


def views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


@contextmanager
def answering(*answers: bytes, keep: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives each request the next of some answers, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = list(answers)

        def serve() -> None:
            while left:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(10)
                    while left:
                        request = connection.recv(65536)
                        if not request:
                            break
                        asked.append(request)
                        connection.sendall(left.pop(0))
                        if not keep:
                            break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/a", asked
        left.clear()
        with socket.socket() as last:
            last.settimeout(1)
            last.connect_ex(server.getsockname())
        thread.join(10)


def part(first: int, last: int, body: bytes, more: str = "", status: str = "206 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Range: bytes {first}-{last}/100\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("offset", "sizes"),
    [(0, (1,)), (5, (10, 0, 20)), (2_999_999, (1,)), (0, (1_000_000, 2_000_000)), (7, ())],
)
def test_bytes_are_those_of_read(url: str, offset: int, sizes: tuple[int, ...]) -> None:
    with open_store(url) as store:
        given = views(*sizes)
        store.read_into("x#1 %.bin", offset, given)
        assert store._receiver is not None
        assert b"".join(given) == DATA[offset : offset + sum(sizes)]


def test_connections_are_used_again(url: str) -> None:
    receiver = Receiver(url, Limits(10, 10))
    for _ in range(3):
        assert receiver.receive("x#1 %.bin", 0, views(100), 10)
    assert len(receiver._idle) == 1
    receiver.close()
    assert not receiver._idle


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    with answering(part(0, 1, b"ab"), part(2, 3, b"cd"), keep=False) as (url, asked):
        receiver = Receiver(url, Limits(10, 10))
        first, second = views(2, 2)
        assert receiver.receive("x", 0, [first], 10)
        assert receiver.receive("x", 2, [second], 10)
        assert (bytes(first), bytes(second)) == (b"ab", b"cd")
        assert b"Range: bytes=2-3\r\n" in asked[1]
        receiver.close()


@pytest.mark.parametrize(
    "answer",
    [
        part(0, 3, b"abcd", status="200 OK"),
        part(1, 4, b"abcd"),
        part(0, 4, b"abcde"),
        part(0, 3, b"abcd", "Content-Encoding: gzip\r\n"),
        b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-3/9\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"4\r\nabcd\r\n0\r\n\r\n",
        b"HTTP/1.1 206 OK\r\nContent-",
    ],
    ids=("whole", "elsewhere", "longer", "encoded", "redirect", "forbidden", "chunked", "cut"),
)
def test_what_is_not_plain_is_left_to_others(answer: bytes) -> None:
    with answering(answer) as (url, _):
        receiver = Receiver(url, Limits(10, 10))
        assert not receiver.receive("x", 0, views(4), 10)
        assert not receiver._idle


@pytest.mark.parametrize(
    "answer",
    [
        part(0, 3, b"abcd")[:-1],
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
    ids=("truncated", "busy", "garbage", "nothing"),
)
def test_what_may_be_better_next_time_is_an_error(answer: bytes) -> None:
    with answering(answer, keep=False) as (url, _):
        receiver = Receiver(url, Limits(10, 2))
        with pytest.raises(OSError, match=r"early|503|status|Remote|BadStatus"):
            receiver.receive("x", 0, views(4), 2)
        assert not receiver._idle


def test_a_server_that_ignores_ranges_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA[:1000])
    with http_folder(tmp_path, ranges=False) as url, open_store(url) as store:
        with pytest.raises(StoreError, match=f"{url}/x cannot be read"):
            store.read_into("x", 10, views(20))
        assert store._receiver is None


@pytest.mark.parametrize("folder", ["my data", "donn\u00e9es"])
def test_a_url_that_is_not_encoded_is_read_as_ever(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "x").write_bytes(DATA[:1000])
    with http_folder(tmp_path) as url, open_store(f"{url}/{folder}") as store:
        given = views(20)
        store.read_into("x", 10, given)
        assert bytes(given[0]) == DATA[10:30]


def test_an_address_of_colons_has_a_port_of_its_own() -> None:
    receiver = Receiver("http://[::1]/a", Limits(1, 1))
    assert (receiver._host, receiver._port) == ("::1", 80)


def test_what_is_missing_is_named(url: str) -> None:
    with open_store(url) as store, pytest.raises(SourceNotFound, match=f"{url}/y"):
        store.read_into("y", 0, views(4))


def test_a_range_beyond_the_end_is_named(url: str) -> None:
    with (
        open_store(url) as store,
        pytest.raises(StoreError, match="but the object has 3000000 bytes"),
    ):
        store.read_into("x#1 %.bin", 2_999_990, views(20))


@pytest.mark.parametrize("fault", ["status", "reset", "truncate", "stall", "stall_body"])
def test_faults_are_retried(fault: str, url: str) -> None:
    with (
        FaultProxy(url.removesuffix("/a"), seed=1) as proxy,
        open_store(f"{proxy.url}/a", {"timeout_s": 0.4}) as store,
    ):
        proxy.fail(fault, next=2)
        given = views(1_000_000)
        store.read_into("x#1 %.bin", 1000, given)
        assert bytes(given[0]) == DATA[1000:1_001_000]
        assert proxy.struck()[fault] == 2
        assert store._receiver is not None


def test_a_stall_ends_at_the_deadline(url: str) -> None:
    with (
        FaultProxy(url.removesuffix("/a"), seed=1) as proxy,
        open_store(f"{proxy.url}/a", {"deadline_s": 0.5, "timeout_s": 0.2}) as store,
    ):
        proxy.fail("stall_body", p=1.0)
        begin_s = time.monotonic()
        with pytest.raises(StoreError, match=r"attempts? in \d\.\d s"):
            store.read_into("x#1 %.bin", 0, views(1_000_000))
        assert time.monotonic() - begin_s < 30  # of the 60 that a stall may last by default


@pytest.mark.parametrize(
    ("url", "served"),
    [
        ("http://host/a", True),
        ("HTTP://host:81/a", True),
        ("https://host/a", False),
        ("http://user:word@host/a", False),
        ("s3://bucket/a", False),
        ("memory://a", False),
        ("http://host/a b", False),
        ("http://host/\u00e9", False),
        ("http://host/a#b", False),
        ("http://host/a?sig=x%20y", True),
        ("http://[::1]/a", True),
        ("http://", False),
        ("http://:80/a", False),
        ("http://host:abc/a", False),
        ("http://host:99999/a", False),
        ("http://[::1/a", False),
        # Addresses are not checked by older ones; the connection then fails.
        ("http://[1:2:3]/a", sys.version_info < (3, 11, 4)),
    ],
)
def test_only_plain_http_is_taken(url: str, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert Receiver.serves(url) is served
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside")
    assert not Receiver.serves("http://host/a")
    assert Receiver.serves("http://inside/a")
