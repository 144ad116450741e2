"""What every test shares."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.huge_pages import move_to_huge_pages
from tests.servers import S3, FaultProxy, http_folder, s3_server
from tests.support import numbered_folder

# No test depends on a clock, Hypothesis' own included; and a run repeats another exactly.
settings.register_profile(
    "fastio", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fastio")

# Tests give worker processes functions and datasets that they define, which only forked ones have.
# From Python 3.14 on, another method is the default; tests of other methods name them.
multiprocessing.set_start_method("fork", force=True)

# Processes of multiprocessing's fork server begin where these are imported, which takes seconds.
multiprocessing.set_forkserver_preload(["fastio.loader", "tests.staging_support"])

# torch computes in one thread, here and in processes that are started: of small models, threads
# spend most of their time in loops that wait for one another, on busy machines many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores SIGINT, and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Importing and collecting the tests makes millions of objects, all of which stay. Searching them
# for garbage again and again takes a fifth of that time. `pytest_collection_finish` enables it.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all`, which tools/test --all gives."""
    parser.addoption("--all", action="store_true", help="run the tests that are marked long too")


def pytest_collection_finish() -> None:
    """Leaves what has been imported and collected, millions of objects, out of garbage collections.

    Thousands of processes are forked here. A collection in one of them would write to the header of
    each of these objects, and so copy the memory that it shares with this process.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    move_to_huge_pages()


@pytest.hookimpl(tryfirst=True)  # before any fixture is set up
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that are marked long, unless all are asked for."""
    if item.get_closest_marker("long") and not item.config.getoption("--all"):
        pytest.skip("long: tools/test --all runs it")


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """What is written does not have to survive the machine: tests kill processes alone.

    That it is synchronised is tested by calls that fail, or end the process, in place of these.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Indexes of tars are kept here, and not in the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server for the whole run: make a bucket of your own."""
    pytest.importorskip("moto", reason="moto[server] is the S3 server of the tests")
    pytest.importorskip("flask", reason="moto[server] needs it")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder, for reading alone, of files whose fixture of this name is not another."""
    return numbered_folder(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[FaultProxy]:
    """A proxy in front of the folder `root` of a file of tests."""
    with http_folder(root) as url, FaultProxy(url, seed=1) as proxy:
        yield proxy


@pytest.fixture
def proxy(running: FaultProxy) -> Iterator[FaultProxy]:
    """`running`, which makes no faults and has seen nothing."""
    running.calm()
    running.forget()
    yield running
    running.calm()


@pytest.fixture
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor measures for moments, and however long a busy machine takes is no error."""
    monkeypatch.setattr("fastio.diagnose.probes.rates.SECONDS", 0.01)
    monkeypatch.setattr("fastio.diagnose.probes.rates._FRESH_S", 0.05)
    for name in ("SECONDS", "_SECONDS", "_LOADER_S"):
        monkeypatch.setattr(f"fastio.diagnose.probes.remote.{name}", 0.01)
    monkeypatch.setattr("fastio.diagnose.probes.data._STORE_S", 600.0)
    monkeypatch.setattr("fastio.diagnose.probes.remote._DEADLINE_S", 600.0)
    monkeypatch.setattr("fastio.diagnose.probes.samples._HEADERS_S", 600.0)
    monkeypatch.setattr("fastio.diagnose.probes.storage._MOST_S", 600.0)
    monkeypatch.setattr("fastio.diagnose.probes.storage._SECONDS", 0.01)
    monkeypatch.setattr("fastio.diagnose.probes.BUDGET_S", 3600.0)


@pytest.fixture
def warned_anew() -> Iterator[None]:
    """A reason that another test of this process was warned of is warned of again."""
    from fastio.feed.workers import _warn

    _warn.cache_clear()
    yield
    _warn.cache_clear()
