"""Store: right bytes or a StoreError, whatever the network does."""

from __future__ import annotations

import pickle
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import StoreError
from fastio.errors import SourceChanged
from fastio.store import Store, open_store, retry
from tests.servers import S3, FaultProxy, http_folder

DATA = bytes(np.random.default_rng(0).integers(0, 256, 2_000_000, np.uint8))
# Options that only fsspec's file systems know, so that obstore is not taken.
ONLY_FSSPEC = {"http": {"simple_links": True}, "s3": {"default_fill_cache": False}}
# Each of these breaks an answer so that it is noticed.
LOUD = ["status", "stall", "reset", "truncate", "stall_body"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("folder")
    (path / "data").write_bytes(DATA)
    with http_folder(path) as served:
        yield served


@pytest.fixture(scope="module", params=["http", "s3"])
def running(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """A proxy in front of a server that has DATA as "data"; `proxy` makes no faults at first."""
    if request.param == "http":
        target = request.getfixturevalue("url")
    else:
        s3: S3 = request.getfixturevalue("s3")
        s3.bucket("faults")
        s3.put("faults", "data", DATA)
        target = s3.endpoint
    with FaultProxy(target) as made:
        yield made


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other fast. How long the pauses are is tested with a clock below."""
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.005)


@pytest.fixture(params=["obstore", "fsspec"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reach(proxy: FaultProxy, backend: str, request: pytest.FixtureRequest, **limits: Any) -> Store:
    """The store behind a proxy, through a library."""
    scheme = request.node.callspec.params.get("running", "http")
    package = "obstore" if backend == "obstore" else {"http": "aiohttp", "s3": "s3fs"}[scheme]
    pytest.importorskip(package, reason=f"{scheme} through {backend} needs it")
    options = request.getfixturevalue("s3").options(proxy.url) if scheme == "s3" else {}
    if backend == "fsspec":
        options |= ONLY_FSSPEC[scheme]
    place = "s3://faults" if scheme == "s3" else proxy.url
    store = open_store(place, {**options, **limits})
    assert store.backend == backend
    return store


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fault", LOUD)
def test_a_fault_that_passes_is_retried(
    proxy: FaultProxy, backend: str, fault: str, request: pytest.FixtureRequest
) -> None:
    store = reach(proxy, backend, request, timeout_s=0.5)
    proxy.fail(fault, next=2)
    assert store.read("data", 1000, 1_000_000) == DATA[1000:1_001_000]
    assert proxy.struck()[fault] == 2


@pytest.mark.parametrize("fault", LOUD)
def test_a_fault_that_stays_ends_at_the_deadline(
    proxy: FaultProxy, backend: str, fault: str, request: pytest.FixtureRequest
) -> None:
    store = reach(proxy, backend, request, deadline_s=0.5, timeout_s=0.1)
    proxy.fail(fault, p=1)
    with pytest.raises(
        StoreError, match=r"data cannot be read: \d+ attempts? in [\d.]+ s, the last"
    ):
        store.read("data", 0, 50_000)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fault", ["stall", "truncate"])
def test_whole_objects_are_retried_too(
    proxy: FaultProxy, backend: str, fault: str, request: pytest.FixtureRequest
) -> None:
    store = reach(proxy, backend, request, deadline_s=8, timeout_s=1)
    proxy.fail(fault, next=1)
    assert store.read("data") == DATA


@pytest.mark.usefixtures("short_pauses")
def test_many_threads_get_through_all_faults_at_once(
    proxy: FaultProxy, request: pytest.FixtureRequest
) -> None:
    store = reach(proxy, "obstore", request, timeout_s=0.5)
    for fault in LOUD:
        proxy.fail(fault, p=0.05)

    def read(n: int) -> bool:
        return store.read("data", n * 10_000, 10_000) == DATA[n * 10_000 : (n + 1) * 10_000]

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(read, range(100)))
    assert sum(proxy.struck().values()) > 5


@pytest.mark.usefixtures("short_pauses")
def test_ranges_get_through_faults(url: str) -> None:
    with FaultProxy(url) as proxy:
        store = open_store(proxy.url, {"timeout_s": 0.5})
        for fault in LOUD:
            proxy.fail(fault, p=0.1)
        ranges = [(n * 200_000, 1000) for n in range(10)]
        found = store.read_ranges("data", ranges)
    assert [bytes(f) for f in found] == [DATA[o : o + n] for o, n in ranges]


def test_ranges_fail_as_one(url: str) -> None:
    with FaultProxy(url) as proxy:
        store = open_store(proxy.url, {"deadline_s": 2, "timeout_s": 0.5})
        proxy.fail("reset", p=1)
        with pytest.raises(StoreError, match="attempts"):
            store.read_ranges("data", [(n * 200_000, 1000) for n in range(10)])


@pytest.mark.parametrize("status", [401, 403, 410, 501])
def test_an_answer_that_stays_the_same_is_not_retried(
    proxy: FaultProxy, backend: str, status: int, request: pytest.FixtureRequest
) -> None:
    if (backend, request.node.callspec.params["running"]) == ("fsspec", "s3"):
        pytest.skip("s3fs retries some of these itself")
    store = reach(proxy, backend, request)
    proxy.fail("status", p=1, status=status)
    with pytest.raises(StoreError, match="data cannot be read: "):
        store.read("data")
    assert proxy.struck()["status"] == 1


def test_a_single_answer_without_the_range_is_not_believed(
    proxy: FaultProxy, backend: str, request: pytest.FixtureRequest
) -> None:
    store = reach(proxy, backend, request)
    proxy.storm(0.5, ["whole"], seed=4)  # of equal requests, the first is spoilt, and then no more
    assert store.read("data", 1000, 50_000) == DATA[1000:51_000]
    memory = bytearray(50_000)
    store.read_into("data", 2000, [memoryview(memory)])
    assert memory == DATA[2000:52_000]
    assert proxy.struck()["whole"]
    assert store.transfers.retries == proxy.struck()["whole"]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(
    proxy: FaultProxy, backend: str, status: int, request: pytest.FixtureRequest
) -> None:
    store = reach(proxy, backend, request)
    proxy.fail("status", next=2, status=status)
    assert store.read("data") == DATA


def test_a_flipped_bit_comes_through_as_one(url: str) -> None:
    """TCP's checksum held, so the store cannot know: callers have checksums of their own."""
    with FaultProxy(url) as proxy:
        proxy.fail("flip", next=1)
        found = np.frombuffer(open_store(proxy.url).read("data"), np.uint8)
    wrong = found ^ np.frombuffer(DATA, np.uint8)
    assert np.unpackbits(wrong).sum() == 1


def test_a_slow_answer_that_goes_on_is_waited_for(url: str) -> None:
    """Two seconds for the whole of it, twice the timeout, but never that long without a byte."""
    pytest.importorskip("obstore", reason="fsspec does not tell progress")
    with FaultProxy(url) as proxy:
        proxy.set(bandwidth=1_000_000)
        assert open_store(proxy.url, {"deadline_s": 20, "timeout_s": 1}).read("data") == DATA


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fault", ["status", "stall"])
def test_writes_are_retried(s3: S3, backend: str, fault: str) -> None:
    pytest.importorskip("obstore" if backend == "obstore" else "s3fs", reason="it is tested")
    bucket = s3.bucket("written")
    with FaultProxy(s3.endpoint) as proxy:
        options = s3.options(proxy.url) | (ONLY_FSSPEC["s3"] if backend == "fsspec" else {})
        store = open_store(bucket, {**options, "deadline_s": 20, "timeout_s": 1})
        proxy.fail(fault, next=1)
        store.write("x", DATA)
        assert store.read("x") == DATA


def test_no_server_at_all(backend: str) -> None:
    pytest.importorskip("obstore" if backend == "obstore" else "aiohttp", reason="it is tested")
    options = ONLY_FSSPEC["http"] if backend == "fsspec" else None
    store = open_store("http://127.0.0.1:9", {**(options or {}), "deadline_s": 0.3})
    with pytest.raises(StoreError, match="attempt"):
        store.read("data")


# --- The loop, with a clock of its own ---------------------------------------------------------


class Clock:
    """Time that passes when one sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        monkeypatch.setattr(retry.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(retry.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_attempts_keep_to_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    given: list[float] = []

    def request(left_s: float) -> None:
        given.append(left_s)
        assert clock.now + left_s <= 110.0 + 1e-9
        clock.now += min(left_s, 1.0)
        raise OSError("again")

    with pytest.raises(retry.Failed) as raised:
        retry.attempt(request, 10.0)
    assert given[0] == 10.0
    assert raised.value.attempts == len(given) > 2
    assert raised.value.seconds <= 10.0 + 1e-9


def test_pauses_double_and_have_full_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda self, low, high: high)

    def request(left_s: float) -> None:
        raise OSError("again")

    with pytest.raises(retry.Failed):
        retry.attempt(request, 60.0)
    assert clock.pauses[:7] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_pauses_leave_the_users_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    before = random.getstate()

    def request(left_s: float) -> None:
        raise OSError("again")

    with pytest.raises(retry.Failed):
        retry.attempt(request, 60.0)
    assert random.getstate() == before


def test_connections_that_are_refused_for_too_long_are_final(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda self, low, high: high)

    def request(left_s: float) -> None:
        raise OSError("cannot connect") from ConnectionRefusedError(111)

    with pytest.raises(retry.Failed) as raised:
        retry.attempt(request, 60.0, refused_s=lambda: 10.0)
    assert 8.9 < raised.value.seconds < 10.0
    assert clock.pauses[:5] == [0.2, 0.4, 0.8, 1.0, 1.0]
    with pytest.raises(retry.Failed) as raised:
        retry.attempt(request, 60.0)
    assert raised.value.seconds > 50


def test_only_refusals_in_a_row_are_final(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    errors = [ConnectionRefusedError(), OSError("reset")]

    def request(left_s: float) -> None:
        errors.append(errors.pop(0))
        raise errors[-1]

    with pytest.raises(retry.Failed) as raised:
        retry.attempt(request, 60.0, refused_s=lambda: 2.0)
    assert raised.value.seconds > 50


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port of this machine at which nothing listens, and stores that soon give it up."""
    monkeypatch.setattr("fastio.store.api._REFUSED_S", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(folder: Path, port: int) -> Iterator[None]:
    """A folder over HTTP at a port."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("options", [{}, ONLY_FSSPEC["http"]])
def test_an_address_at_which_nothing_listens_is_named_soon(
    closed: int, options: dict[str, Any]
) -> None:
    if options:
        pytest.importorskip("aiohttp", reason="http through fsspec needs it")
    store = open_store(f"http://127.0.0.1:{closed}/data", options)
    for call in (
        lambda: store.read("x"),
        lambda: store.read_into("x", 0, [memoryview(bytearray(1))]),
    ):
        with pytest.raises(StoreError, match=r"in \d\.\d s, .*No program listens there") as raised:
            call()
        assert f"127.0.0.1:{closed}" in str(raised.value)


def test_a_server_that_has_answered_may_restart(tmp_path: Path, closed: int) -> None:
    """Connections are refused for longer than those to a server that has never answered."""
    (tmp_path / "data").write_bytes(DATA)
    store = open_store(f"http://127.0.0.1:{closed}")
    with served(tmp_path, closed):
        assert store.read("data") == DATA
    again = pickle.loads(pickle.dumps(store))
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(one.read, "data") for one in (store, again)]
        time.sleep(1.5)
        with served(tmp_path, closed):
            assert [read.result() for read in reads] == [DATA, DATA]
    assert store.transfers.retries > 0


@pytest.mark.parametrize("nbytes", [len(DATA) // 2, 2 * len(DATA)])
def test_a_replaced_file_of_a_server_without_etags_and_ranges(tmp_path: Path, nbytes: int) -> None:
    (tmp_path / "data").write_bytes(DATA)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with served(tmp_path, port):
        store = open_store(f"http://127.0.0.1:{port}")
        stamp = store.stat("data")
        assert store.read("data", 0, len(DATA), expect=stamp) == DATA
        (tmp_path / "data").write_bytes(bytes(nbytes))
        with pytest.raises(SourceChanged, match="was replaced"):
            store.read("data", 0, len(DATA), expect=stamp)


def test_a_stopped_call_makes_no_further_attempt() -> None:
    stop = threading.Event()
    stop.set()

    def request(left_s: float) -> None:
        raise OSError("again")

    with pytest.raises(retry.Failed) as raised:
        retry.attempt(request, 60.0, stop)
    assert raised.value.attempts == 1


@pytest.mark.parametrize("error", [FileNotFoundError("x"), retry.Permanent("x")])
def test_what_stays_is_raised_at_once(error: Exception) -> None:
    calls: list[float] = []

    def request(left_s: float) -> None:
        calls.append(left_s)
        raise error

    with pytest.raises(type(error)):
        retry.attempt(request, 60.0)
    assert len(calls) == 1


# --- The proxy itself --------------------------------------------------------------------------


def test_the_proxy_ends_with_its_block(url: str) -> None:
    with FaultProxy(url) as proxy:
        process = proxy._process
        assert process.poll() is None
    assert process.poll() is not None


def test_a_folder_s_server_is_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    with http_folder(tmp_path) as first, http_folder(tmp_path) as second:
        assert first != second
        assert open_store(first).read("x") == open_store(second).read("x") == b"1"
