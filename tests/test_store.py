"""Store: what it reads, writes and lists, and which library it goes through."""

from __future__ import annotations

import gc
import json
import math
import pickle
import socket
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import SourceNotFound, StoreError
from fastio.store import Store, is_remote, join, open_store, split
from fastio.store.obstore_backend import ObstoreBackend
from fastio.store.options import Untranslatable, for_fsspec, for_obstore
from fastio.store.ranges import coalesce, parallel
from fastio.store.retry import Failed, Limits, attempt
from tests.children import run_code
from tests.servers import S3, FaultProxy, http_folder

ROOT = Path(__file__).parent.parent
NAMES = [
    "plain",
    "with space",
    "sharp#sharp",
    "100%.txt",
    "a%20b",
    "ünï-日本",
    "a+b&c=d",
    "in/a/folder",
]
DATA = bytes(np.random.default_rng(0).integers(0, 256, 300_000, np.uint8))
# Options that only fsspec's file systems know, so that obstore is not taken.
ONLY_FSSPEC = {"http": {"simple_links": True}, "s3": {"default_fill_cache": False}}
Opener = Callable[..., Store]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an object of every name, an empty one, and "data"."""
    path = tmp_path_factory.mktemp("folder")
    for name in NAMES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(name.encode())
    (path / "empty").touch()
    (path / "data").write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with http_folder(folder) as served:
        yield served


@pytest.fixture
def bucket(s3: S3, request: pytest.FixtureRequest) -> str:
    """The URL of an empty bucket of the test's own."""
    return s3.bucket(f"bucket-{abs(hash(request.node.name)):x}"[:60])


def skip_without(backend: str, scheme: str) -> None:
    package = "obstore" if backend == "obstore" else {"http": "aiohttp", "s3": "s3fs"}[scheme]
    pytest.importorskip(package, reason=f"{scheme} through {backend} needs it")


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def sizes(store: Store, prefix: str = "") -> list[tuple[str, int]]:
    """What a list says, without versions."""
    return [(name, stamp.size) for name, stamp in store.list(prefix)]


@pytest.fixture(params=["obstore", "fsspec"])
def web(request: pytest.FixtureRequest, url: str) -> Store:
    """The folder over HTTP, through either library."""
    skip_without(request.param, "http")
    store = open_store(url, ONLY_FSSPEC["http"] if request.param == "fsspec" else None)
    assert store.backend == request.param
    return store


@pytest.fixture(params=["s3 obstore", "s3 fsspec", "memory", "file"])
def writable(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty folder that can be written, in every kind of place."""
    kind, _, backend = request.param.partition(" ")
    if kind == "memory":
        # Names of folders are given again where pytest removes them at once.
        return open_store(f"memory://{uuid.uuid4()}")
    if kind == "file":
        return open_store(tmp_path.as_uri())
    skip_without(backend, "s3")
    options = request.getfixturevalue("s3").options()
    if backend == "fsspec":
        options |= ONLY_FSSPEC["s3"]
    store = open_store(join(request.getfixturevalue("bucket"), "some folder/sub"), options)
    assert store.backend == backend
    return store


# --- Paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "s3://b",
        "http://h/x",
        "memory://x",
        "hf://datasets/a",
        "simplecache::file:///x",
        "ab::cd://e",
    ],
)
def test_a_url_is_remote(path: str) -> None:
    assert is_remote(path)


@pytest.mark.parametrize(
    "path", ["/data", "data", "file:///data", "local:///data", "C:/x", Path("s3://b"), None, 3, ""]
)
def test_a_local_path_is_not_remote(path: object) -> None:
    assert not is_remote(path)


@pytest.mark.parametrize(
    ("url", "name", "joined"),
    [
        ("s3://b/p", "x", "s3://b/p/x"),
        ("s3://b/p/", "x#?%", "s3://b/p/x#?%"),
        ("http://h/p", "x #%", "http://h/p/x%20%23%25"),
        ("http://h/p?sig=1", "x", "http://h/p/x?sig=1"),
        ("memory://", "x", "memory://x"),
        ("simplecache::s3://b/p", "x", "simplecache::s3://b/p/x"),
        ("zip://in::http://h/a.zip", "x", "zip://in/x::http://h/a.zip"),
    ],
)
def test_join_puts_a_name_below_a_url(url: str, name: str, joined: str) -> None:
    assert join(url, name) == joined


@pytest.mark.parametrize(
    ("url", "root", "name"),
    [
        ("s3://b/p/x y?.parquet", "s3://b", "p/x y?.parquet"),
        ("s3://b", "s3://b", ""),
        ("http://u:p@h:80/p/a%20b.parquet?sig=1", "http://u:p@h:80?sig=1", "p/a b.parquet"),
        ("https://h/x", "https://h", "x"),
        ("memory://x.csv", "memory://", "x.csv"),
        ("memory://a/x.csv", "memory://a", "x.csv"),
        ("az://c@account/p/x", "az://c@account", "p/x"),
        ("simplecache::s3://b/p/x", "simplecache::s3://b/p", "x"),
        ("simplecache::memory://x", "simplecache::memory://", "x"),
        ("zip://p/in.csv::http://h/a.zip", "zip://p::http://h/a.zip", "in.csv"),
    ],
)
def test_split_is_what_join_puts_together(url: str, root: str, name: str) -> None:
    assert split(url) == (root, name)
    assert split(join(*split(url))) == (root, name)


# --- Reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_names_are_read_as_they_are(web: Store, name: str) -> None:
    assert web.read(name) == name.encode()
    assert web.size(name) == len(name.encode())


@pytest.mark.parametrize(
    ("offset", "length"), [(0, None), (7, None), (0, 1), (1000, 2000), (299_999, 1), (5, 0)]
)
def test_a_range_is_read(web: Store, offset: int, length: int | None) -> None:
    end = None if length is None else offset + length
    assert web.read("data", offset, length) == DATA[offset:end]


def test_what_is_read_is_memory_of_bytes(web: Store) -> None:
    found = web.read("data", 10, 20)
    assert isinstance(found, memoryview)
    assert (found.format, found.readonly, found.nbytes) == ("B", True, 20)


def test_an_empty_object_is_read(web: Store) -> None:
    assert web.read("empty") == b""
    assert web.size("empty") == 0


@pytest.mark.parametrize(("offset", "length"), [(299_999, 2), (300_000, 1), (400_000, 10)])
def test_a_range_that_the_object_does_not_have_is_an_error(
    web: Store, offset: int, length: int
) -> None:
    with pytest.raises(StoreError, match="data"):
        web.read("data", offset, length)


def test_a_negative_range_is_refused(web: Store) -> None:
    with pytest.raises(ValueError, match="-1"):
        web.read("data", -1)


def test_no_such_object(web: Store) -> None:
    for call in (web.read, web.size, web.stat):
        with pytest.raises(SourceNotFound, match="/nothing: there is no such object"):
            call("nothing")


class Held:
    """An object that a caller has."""


def test_an_error_that_was_caught_keeps_no_variables_of_callers(web: Store) -> None:
    def look() -> weakref.ref[Held]:
        held = Held()
        with suppress(SourceNotFound):
            web.read("nothing")
        return weakref.ref(held)

    with no_garbage_collection():
        assert look()() is None


@pytest.mark.parametrize(("failures", "deadline_s"), [(1, 60.0), (2, 60.0), (1000, 0.1)])
def test_attempts_that_failed_keep_no_variables_of_callers(
    failures: int, deadline_s: float
) -> None:
    calls = iter(range(1000))

    def request(left_s: float) -> int:
        if next(calls) < failures:
            raise OSError("broken")
        return 1

    def call() -> weakref.ref[Held]:
        held = Held()
        with suppress(Failed):
            attempt(request, deadline_s)
        return weakref.ref(held)

    with no_garbage_collection():
        assert call()() is None


RANGES = [(200_000, 10), (0, 100), (50, 100), (120, 5), (140_000, 0), (299_990, 10), (0, 100)]


def test_ranges_come_in_their_order(web: Store) -> None:
    found = web.read_ranges("data", RANGES)
    assert [bytes(f) for f in found] == [DATA[o : o + n] for o, n in RANGES]


def test_neighbours_are_fetched_once(url: str) -> None:
    with FaultProxy(url) as proxy:
        open_store(proxy.url).read_ranges("data", RANGES)
        assert sorted((a.start, a.sent) for a in proxy.answers("/data")) == [
            (0, 150),
            (200_000, 10),
            (299_990, 10),
        ]
        assert proxy.sent_twice() == 0


def test_a_whole_read_is_one_request(url: str) -> None:
    with FaultProxy(url) as proxy:
        store = open_store(proxy.url)
        assert proxy.answers() == []
        store.read("data")
        assert [(a.method, a.sent) for a in proxy.answers()] == [("GET", len(DATA))]


def test_many_threads_read_at_once(web: Store) -> None:
    def read(n: int) -> bool:
        return web.read("data", n * 1000, 1000) == DATA[n * 1000 : (n + 1) * 1000]

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(read, range(300)))


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_a_server_that_ignores_ranges_is_noticed(folder: Path, backend: str) -> None:
    skip_without(backend, "http")
    options = ONLY_FSSPEC["http"] if backend == "fsspec" else None
    with http_folder(folder, ranges=False) as url:
        store = open_store(url, options)
        assert store.read("data") == DATA
        with pytest.raises(StoreError, match=r"(?i)range"):
            store.read("data", 100, 50)


def test_python_s_server_serves_ranges_too(folder: Path) -> None:
    with http_folder(folder, python=True) as url:
        assert open_store(url).read("data", 1234, 4321) == DATA[1234 : 1234 + 4321]


# --- Writing and listing -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read(writable: Store, name: str) -> None:
    writable.write(name, name.encode())
    assert writable.read(name) == name.encode()
    assert sizes(writable) == [(name, len(name.encode()))]


@pytest.mark.parametrize(
    "data", [b"", bytearray(b"abc"), np.arange(10.0), memoryview(DATA)], ids=lambda d: str(type(d))
)
def test_any_memory_is_written(writable: Store, data: Any) -> None:
    writable.write("x", data)
    assert writable.read("x") == bytes(data)


def test_a_local_file_is_written(writable: Store, folder: Path) -> None:
    writable.write("copy", folder / "data")
    assert writable.read("copy") == DATA


def test_a_large_object_is_written_in_parts(s3: S3, bucket: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="it is its parts that are counted")
    large = np.random.default_rng(1).bytes(20 << 20)
    (tmp_path / "large").write_bytes(large)
    with FaultProxy(s3.endpoint) as proxy:
        store = open_store(bucket, s3.options(proxy.url))
        for data in (large, tmp_path / "large"):
            proxy.forget()
            store.write("large", data)
            assert len(proxy.answers(method="PUT")) == 3
            assert store.read("large") == large


def test_writing_replaces(writable: Store) -> None:
    writable.write("x", b"long before")
    writable.write("x", b"new")
    assert writable.size("x") == 3
    assert writable.read("x") == b"new"


def test_a_list_is_sorted_and_has_the_prefix(writable: Store) -> None:
    for name in ("b/2", "a", "b/1", "b/10", "bb"):
        writable.write(name, name.encode())
    assert sizes(writable) == [("a", 1), ("b/1", 3), ("b/10", 4), ("b/2", 3), ("bb", 2)]
    assert sizes(writable, "b/1") == [("b/1", 3), ("b/10", 4)]
    assert sizes(writable, "b") == [("b/1", 3), ("b/10", 4), ("b/2", 3), ("bb", 2)]
    assert sizes(writable, "c") == []


def test_what_is_deleted_is_gone(writable: Store) -> None:
    writable.write("x", b"1")
    assert writable.size("x") == 1
    writable.delete("x")
    with pytest.raises(SourceNotFound):
        writable.stat("x")


# --- Chains, pickling, forks -------------------------------------------------------------------


def test_a_chain_is_fsspec_s(url: str) -> None:
    pytest.importorskip("aiohttp", reason="fsspec needs it for http")
    store = open_store(f"simplecache::{url}")
    assert store.backend == "fsspec"
    assert store.read("data", 5, 10) == DATA[5:15]


def test_a_store_is_pickled_with_its_options(url: str) -> None:
    store = pickle.loads(pickle.dumps(open_store(url, {"headers": {"X-A": "b"}, "deadline_s": 7})))
    assert store.read("data", 5, 10) == DATA[5:15]
    assert store._limits.deadline_s == 7


def test_a_closed_store_opens_again(url: str) -> None:
    with open_store(url) as store:
        store.read("data", 0, 1)
    assert store.read("data", 5, 10) == DATA[5:15]


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
from fastio.store import open_store
store = open_store(sys.argv[1])
before = bytes(store.read("data", 0, 1000)), store.backend
pid = os.fork()
if not pid:
    same = bytes(store.read("data", 0, 1000)) == before[0]
    print(before[1], store.backend, open_store(sys.argv[1]).size("data"), flush=True)
    os._exit(0 if same else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert bytes(store.read("data", 0, 1000)) == before[0]
sys.exit(code)
"""


def test_a_forked_child_reads(url: str) -> None:
    pytest.importorskip("aiohttp", reason="obstore cannot be used in a forked child, fsspec can")
    pytest.importorskip("obstore", reason="without it there is nothing to change to")
    done = run_code(FORK, url)
    assert (done.stdout, done.returncode) == ("obstore fsspec 300000\n", 0), done.stderr


FORK_WITH_OBSTORE_IN_USE = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import obstore
from obstore.store import HTTPStore

def child(url):
    from fastio.store import open_store
    print(open_store(url).backend, open_store(url).size("data"), flush=True)

url = sys.argv[1]
obstore.head(HTTPStore.from_url(url, client_options={"allow_http": True}), "data")
process = multiprocessing.get_context("fork").Process(target=child, args=(url,))
process.start()
process.join(60)
process.kill()
"""


def test_a_fork_of_a_process_that_used_obstore_itself_reads(url: str) -> None:
    pytest.importorskip("aiohttp", reason="obstore cannot be used in a forked child, fsspec can")
    pytest.importorskip("obstore", reason="without it there is nothing to change to")
    done = run_code(FORK_WITH_OBSTORE_IN_USE, url)
    assert done.stdout == "fsspec 300000\n", done.stderr


# --- Secrets -----------------------------------------------------------------------------------

SECRET = "s3cr3t/with+signs=="


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("status", [403, 404, 400])
def test_no_message_has_a_secret(url: str, backend: str, status: int) -> None:
    skip_without(backend, "http")
    with FaultProxy(url) as proxy:
        proxy.fail("status", p=1, status=status)
        address = proxy.url.replace("//", "//someone:s3cr3t-password@")
        options: dict[str, Any] = {"headers": {"Authorization": f"Bearer {SECRET}"}}
        if backend == "fsspec":
            options |= ONLY_FSSPEC["http"]
            address += "?signature=s3cr3t-query"
        store = open_store(address, options)
        assert store.backend == backend
        with pytest.raises(OSError, match=proxy.url.rpartition(":")[2]) as raised:
            store.read("data")
    told = "".join(traceback.format_exception(raised.value)) + repr(store) + store.url
    assert "s3cr3t" not in told


@pytest.mark.parametrize("more", [{}, ONLY_FSSPEC["s3"]], ids=["obstore", "fsspec"])
def test_no_message_has_the_keys_of_s3(s3: S3, bucket: str, more: dict[str, Any]) -> None:
    skip_without("fsspec" if more else "obstore", "s3")
    with FaultProxy(s3.endpoint) as proxy:
        proxy.fail("status", p=1, status=403)
        store = open_store(bucket, s3.options(proxy.url) | {"token": SECRET} | more)
        with pytest.raises(StoreError, match="permission denied") as raised:
            store.read("data")
    told = "".join(traceback.format_exception(raised.value)) + repr(store)
    for secret in (SECRET, *(s3.options()[key] for key in ("key", "secret"))):
        assert secret not in told


# --- Options -----------------------------------------------------------------------------------


def test_s3fs_s_options_become_obstore_s() -> None:
    options = {
        "key": "k",
        "secret": "s",
        "token": "t",
        "client_kwargs": {"endpoint_url": "http://e", "region_name": "r", "verify": False},
    }
    found = for_obstore("s3", "s3://b", options)
    assert found.config == {
        "access_key_id": "k",
        "secret_access_key": "s",
        "session_token": "t",
        "endpoint": "http://e",
        "region": "r",
    }
    assert found.client == {"allow_invalid_certificates": True}


def test_obstore_s_options_become_s3fs_s() -> None:
    options = {"access_key_id": "k", "skip_signature": True, "region": "r"}
    assert for_fsspec("s3", options) == {
        "key": "k",
        "anon": True,
        "client_kwargs": {"region_name": "r"},
    }


def test_obstore_s_own_words_are_taken(s3: S3, bucket: str) -> None:
    pytest.importorskip("obstore", reason="these are its options")
    options = {
        "access_key_id": "a",
        "secret_access_key": "b",
        "endpoint": s3.endpoint,
        "region": "us-east-1",
        "client_options": {"user_agent": "tests"},
    }
    store = open_store(bucket, options)
    assert store.backend == "obstore"
    store.write("x", b"1")
    assert store.read("x") == b"1"


@pytest.mark.parametrize("family", ["s3", "gs", "az", "http"])
def test_options_within_options_are_not_obstore_s(family: str) -> None:
    with pytest.raises(Untranslatable, match="config_kwargs"):
        for_obstore(family, "https://b", {"config_kwargs": {"a": 1}})


def test_credentials_in_botocore_s_files_are_left_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").touch()
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(Untranslatable, match="credentials"):
        for_obstore("s3", "s3://b", {})
    assert for_obstore("s3", "s3://b", {"anon": True}).config == {"skip_signature": True}


@pytest.mark.parametrize(
    "url", ["gs://bucket/a", "az://container/a", "abfs://c@account.dfs.core.windows.net/a"]
)
def test_other_clouds_are_obstore_s(url: str) -> None:
    pytest.importorskip("obstore", reason="it serves these")
    options = {} if url.startswith("gs") else {"account_name": "account"}
    assert open_store(url, {"anon": True, **options} if options else {"token": "anon"}).backend == (
        "obstore"
    )


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(StoreError, match="nosuchthing"):
        open_store("nosuchthing://x")


WITHOUT = """
import json, sys
sys.modules["s3fs"] = None  # as if it were not installed
from fastio.store import open_store
open_store("s3://b", storage_options=json.loads(sys.argv[1]))
"""


def test_a_missing_package_is_named() -> None:
    done = run_code(WITHOUT, json.dumps(ONLY_FSSPEC["s3"]))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("fastio.errors.PackageMissing: s3fs is needed to open s3://b (obstore: ")
    assert "pip install 's3fs'" in last


# --- Parts -------------------------------------------------------------------------------------


def test_ranges_with_small_gaps_are_one_request() -> None:
    found = coalesce([(100, 10), (0, 50), (60, 20), (500, 1), (5, 5)], gap=20)
    assert [(s.offset, s.length, s.members) for s in found] == [
        (0, 110, (1, 4, 2, 0)),
        (500, 1, (3,)),
    ]


def test_merged_requests_have_a_size() -> None:
    found = coalesce([(0, 60), (60, 60), (120, 500)], gap=0, most=100)
    assert [(s.offset, s.length) for s in found] == [(0, 60), (60, 60), (120, 500)]


def test_parallel_keeps_the_order() -> None:
    tasks = [lambda stop, n=n: n for n in range(100)]
    assert parallel(tasks, threads=8) == list(range(100))


def test_parallel_raises_the_first_error_and_tells_the_others() -> None:
    told = threading.Event()

    def fails(stop: threading.Event) -> int:
        raise KeyError("first")

    def waits(stop: threading.Event) -> int:
        if stop.wait(60):
            told.set()
        return 0

    with pytest.raises(KeyError, match="first"):
        parallel([waits, fails], threads=2)
    assert told.wait(60)


@pytest.mark.parametrize("value", ["x", "5", True, [5], 0, -1, {"total": 5}])
@pytest.mark.parametrize("place", ["http://127.0.0.1:9", "s3://b", "memory://b"])
def test_a_timeout_that_is_no_time_is_named(place: str, value: object) -> None:
    with pytest.raises(StoreError, match=r"option timeout of storage_options .* number of seconds"):
        open_store(place, {"timeout": value})


@pytest.mark.parametrize("value", ["x", "5", True, None, 0, -1, math.inf, math.nan, timedelta(0)])
@pytest.mark.parametrize("name", ["deadline_s", "timeout_s"])
def test_a_limit_that_is_no_time_is_named(name: str, value: object) -> None:
    with pytest.raises(StoreError, match=rf"option {name} of storage_options .* number of seconds"):
        open_store("http://127.0.0.1:9", {name: value})


def test_storage_options_shorten_the_deadline_of_a_dataset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections only
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.parquet"
        begin = time.monotonic()
        with pytest.raises(StoreError, match="attempts"):
            fastio.open(
                url, storage_options={"deadline_s": 0.5, "timeout_s": timedelta(seconds=0.2)}
            )
        assert time.monotonic() - begin < 30  # 60 s is the deadline without options


@pytest.mark.parametrize("value", [5, 0.5, timedelta(seconds=5)])
def test_a_timeout_is_a_number_of_seconds_or_a_timedelta(url: str, value: object) -> None:
    for options in ({"timeout": value}, {"timeout": value, **ONLY_FSSPEC["http"]}):
        assert open_store(url, options).read("data") == DATA


@pytest.mark.parametrize("name", ["a.parquet", "a.tar", "packed"])
def test_opens_do_not_wait_for_one_another(name: str) -> None:
    opens = 4
    together = threading.Barrier(opens)

    class Waits(BaseHTTPRequestHandler):
        """Answers the first requests when as many are waiting as there are opens."""

        def do_GET(self) -> None:
            if not together.broken:
                with suppress(threading.BrokenBarrierError):
                    together.wait(timeout=60)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    def missing(url: str) -> None:
        with pytest.raises((SourceNotFound, StoreError)):
            fastio.open(url)

    with ThreadingHTTPServer(("127.0.0.1", 0), Waits) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with ThreadPoolExecutor(opens) as pool:
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            list(pool.map(missing, [url] * opens))
        server.shutdown()
    assert not together.broken, "an open waited for another one"


def test_clients_for_large_writes_do_not_add_up() -> None:
    backend = ObstoreBackend("s3://bucket", {"anon": True, "region": "x"}, Limits(60.0, 15.0))
    for nbytes in range(100 << 20, 500 << 20, 1 << 20):
        backend._client_for_writing(nbytes, 60.0 + nbytes / 2**20 - 0.001)
    assert len(backend._clients) < 10
