"""Remote datasets when things go wrong: on the way, at the server, on the cache's disk."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fastio
from fastio import Cache, ManifestInvalid, ShardCorrupt, StoreError
from fastio.engine import Engine
from fastio.stage import Blocks, Stager
from tests.children import run_code
from tests.servers import FaultProxy
from tests.staging_support import (
    CROPS,
    MIB,
    Reference,
    block_files,
    disk_use,
    fastio_threads,
    open_files,
    pack_noise,
    piece_files,
    remote_loader,
    short_deadlines,
)
from tests.support import until

ROWS = 192
ALL = list(range(ROWS))
REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    pack_noise(folder / "photos", ROWS)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> Reference:
    return Reference(root / "photos")


@pytest.fixture(params=(None, 16 * MIB, 2 * MIB), ids=("memory", "cache", "small"))
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache | None:
    return None if request.param is None else Cache(tmp_path / "cache", request.param)


# On the way


@pytest.mark.parametrize("fault", ["flip", "truncate", "reset", "status"])
def test_faults_on_the_way_are_not_noticed(
    fault: str, proxy: FaultProxy, reference: Reference, cache: Cache | None
) -> None:
    # Fewer than the attempts that one piece has: else there is a seed that ends in an error.
    proxy.fail(fault, p=0.1, next=1, most=5)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        for _ in range(2):
            assert sorted(reference.epoch(loader)) == ALL
    assert proxy.struck()[fault]


@pytest.mark.parametrize("times", [1, 5])
def test_a_manifest_that_is_damaged_on_the_way_is_fetched_again(
    times: int, proxy: FaultProxy, reference: Reference
) -> None:
    proxy.fail("flip", next=times, match="manifest")
    with remote_loader(f"{proxy.url}/photos") as loader:
        assert sorted(reference.epoch(loader)) == ALL
        assert loader.stats().refetched == times
    assert proxy.struck()["flip"] == times


def test_a_manifest_that_is_damaged_each_time_is_named(proxy: FaultProxy) -> None:
    proxy.fail("flip", p=1.0, match="manifest")
    with pytest.raises(ManifestInvalid, match=r"photos/manifest\.arrow is damaged"):
        remote_loader(f"{proxy.url}/photos")


def test_a_head_that_is_damaged_each_time_is_named(proxy: FaultProxy) -> None:
    with remote_loader(f"{proxy.url}/photos") as loader:
        proxy.fail("flip", p=1.0, match="shard-000001")
        with pytest.raises(ShardCorrupt, match=r"photos/shard-000001.* XXH3 .*expected") as caught:
            list(loader)
        assert "not a complete Arrow file" not in str(caught.value)  # compared before it was parsed
        assert loader.stats().refetched >= 5


@pytest.mark.parametrize(("fault", "counter"), [("flip", "refetched"), ("status", "retries")])
def test_what_is_fetched_again_is_counted(
    fault: str, counter: str, proxy: FaultProxy, reference: Reference
) -> None:
    proxy.fail(fault, next=12, match="shard")
    with remote_loader(f"{proxy.url}/photos") as loader:
        assert sorted(reference.epoch(loader)) == ALL
        # A head is fetched with some bytes of images, which nobody uses.
        assert 1 <= getattr(loader.stats(), counter) <= proxy.struck()[fault] == 12


def negative(image: Any) -> Any:
    return 255 - image


def test_after_an_outage_functions_of_samples_have_seen_every_row_once(
    proxy: FaultProxy, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_deadlines(monkeypatch)
    proxy.fail("status", p=1.0, match="shard-000001")
    steps = [*CROPS, fastio.PerSample(negative, count=2)]
    with remote_loader(f"{proxy.url}/photos", transforms=steps) as loader:
        rows: list[int] = []
        batches = iter(loader)
        with pytest.raises(StoreError, match="shard-000001"):
            rows.extend(
                row for images, y in batches for row in reference.check(loader, (255 - images, y))
            )
        with pytest.raises(StoreError):
            next(batches)
        proxy.calm()
        for images, y in batches:
            rows += reference.check(loader, (255 - images, y))
    assert sorted(rows) == ALL


@pytest.mark.parametrize("fault", ["stall", "stall_body", "status"])
def test_after_an_outage_every_batch_comes_once(
    fault: str,
    proxy: FaultProxy,
    reference: Reference,
    cache: Cache | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_deadlines(monkeypatch)
    proxy.fail(fault, p=1.0, match="shard-000001")
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        rows: list[int] = []
        batches = iter(loader)
        with pytest.raises(StoreError, match="shard-000001"):
            rows.extend(row for batch in batches for row in reference.check(loader, batch))
        with pytest.raises(StoreError):
            next(batches)
        proxy.calm()
        for batch in batches:
            rows += reference.check(loader, batch)
        assert sorted(rows) == ALL
        loader.set_epoch(0)
        assert reference.epoch(loader) == rows


def test_what_was_begun_before_an_outage_was_told_of_is_not_told_of_again(
    proxy: FaultProxy, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, late, submitted = threading.Event(), threading.Event(), threading.Event()
    first = itertools.count()
    fetch, retry = Blocks.fetch, Stager.retry

    def fail_late(blocks: Blocks, number: int, known: Any) -> Any:
        assert blocks.block_rows == 16  # a batch each
        if number == 0 and not next(first):
            assert submitted.wait(60)
            assert late.wait(60)
            raise StoreError("block 0")
        if number and not told.is_set():
            late.set()
            assert told.wait(60)
            raise StoreError(f"block {number}")
        return fetch(blocks, number, known)

    def retry_and_tell(stager: Stager, numbers: Any) -> None:
        retry(stager, numbers)
        submitted.set()

    monkeypatch.setattr(Blocks, "fetch", fail_late)
    monkeypatch.setattr(Stager, "retry", retry_and_tell)
    with remote_loader(f"{proxy.url}/photos", batch_size=16, shuffle=False) as loader:
        batches = iter(loader)
        with pytest.raises(StoreError, match="block 0"):
            next(batches)
        told.set()
        rows = [row for batch in batches for row in reference.check(loader, batch)]
    assert rows == ALL


def test_an_outage_while_damage_is_repaired_loses_no_batch(
    proxy: FaultProxy, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_deadlines(monkeypatch)
    cache = Cache(tmp_path / "cache", 16 * MIB)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        reference.epoch(loader)
        for path in block_files(cache):
            path.write_bytes(bytes(path.stat().st_size))
        proxy.fail("status", p=1.0)
        rows, batches = [], iter(loader)
        with pytest.raises(StoreError):
            next(batches)
        proxy.calm()
        for batch in batches:
            rows += reference.check(loader, batch)
        assert sorted(rows) == ALL


def test_close_does_not_wait_for_a_server_that_does_not_answer(
    proxy: FaultProxy, cache: Cache | None
) -> None:
    loader = remote_loader(f"{proxy.url}/photos", cache)
    batches = iter(loader)
    next(batches)
    proxy.fail("stall", p=1.0)
    loader.close()
    with pytest.raises(fastio.LoaderClosed):
        next(batches)


# On the disk


def damage(cache: Cache, how: str) -> int:
    """Damages every piece of images that is there; returns how many there were."""
    count = 0
    for path in block_files(cache):
        count += 1
        if how == "delete":
            path.unlink()
        elif how == "truncate":
            os.truncate(path, path.stat().st_size // 2)
        elif how == "flip":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        else:
            path.write_bytes(b"")
    return count


# pytest's own folder is called pytest-0 in the first run on a machine. Heads were once told from
# blocks by "-0/" anywhere in a path, and then nothing was damaged in such a run.
@pytest.mark.parametrize("how", ["delete", "truncate", "flip", "empty"])
def test_damage_to_cached_files_is_not_noticed(
    how: str, proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "run-0" / "cache", 16 * MIB)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        reference.epoch(loader)
        assert damage(cache, how)
        rows = []
        for number, batch in enumerate(loader):
            rows += reference.check(loader, batch)
            if number % 6 == 0:
                damage(cache, how)
        assert sorted(rows) == ALL
    assert not cache.verify().strays


def test_damaged_heads_are_fetched_again(
    proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", 16 * MIB)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        reference.epoch(loader)
    for path in piece_files(cache):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        assert sorted(reference.epoch(loader)) == ALL


@pytest.mark.filterwarnings("ignore:reading without the cache:RuntimeWarning")
@pytest.mark.parametrize("again", [False, True], ids=("gone", "file-in-its-place"))
def test_a_cache_folder_may_be_deleted_under_way(
    again: bool, proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", 2 * MIB)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        for _ in range(2):
            rows = []
            for number, batch in enumerate(loader):
                rows += reference.check(loader, batch)
                if number % 8 == 1:
                    shutil.rmtree(cache.path, ignore_errors=True)
                    with suppress(OSError):  # made again meanwhile
                        if again:
                            cache.path.write_text("no folder")
            assert sorted(rows) == ALL


def test_a_disk_that_fails_is_told_once(
    proxy: FaultProxy, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system", str(path))

    cache = Cache(tmp_path / "cache", 2 * MIB)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        batches = iter(loader)
        rows = reference.check(loader, next(batches))
        monkeypatch.setattr("fastio.cache.files.os.rename", fail)
        monkeypatch.setattr("fastio.stage.cached._WITHOUT_CACHE_S", 0.0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for batch in batches:
                rows += reference.check(loader, batch)
            assert sorted(rows) == ALL
            assert sorted(reference.epoch(loader)) == ALL
    messages = [str(warning.message) for warning in told]
    assert ["reading without the cache" in message for message in messages] == [True], messages
    monkeypatch.undo()
    assert not list((cache.path / "tmp").iterdir())
    assert cache.status().bytes <= 2 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk of its own takes the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.filterwarnings("ignore:reading without the cache:RuntimeWarning")
def test_a_full_disk_is_read_around(
    proxy: FaultProxy, reference: Reference, small_disk: Path
) -> None:
    cache = Cache(small_disk / "cache", 16 * MIB)  # more than there is
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        for _ in range(2):
            assert sorted(reference.epoch(loader)) == ALL
    assert not list((cache.path / "tmp").iterdir())


@pytest.mark.filterwarnings("ignore:reading without the cache:RuntimeWarning")
def test_a_disk_that_becomes_read_only_is_read_around(
    proxy: FaultProxy, reference: Reference, small_disk: Path
) -> None:
    cache = Cache(small_disk / "cache", 2 * MIB)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        batches = iter(loader)
        rows = reference.check(loader, next(batches))
        command = ["mount", "-o", "remount,ro", str(small_disk)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("the disk cannot be made read-only while it is in use")
        for batch in batches:
            rows += reference.check(loader, batch)
        assert sorted(rows) == ALL
        assert sorted(reference.epoch(loader)) == ALL


@pytest.mark.parametrize("budget", [1, 4096, MIB + 4096, MIB + 200_000, MIB + 600_000])
def test_a_budget_that_holds_next_to_nothing_is_enough(
    budget: int, proxy: FaultProxy, reference: Reference, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", budget)
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        for _ in range(2):
            assert sorted(reference.epoch(loader)) == ALL
            assert disk_use(cache.path) <= max(budget, MIB)


# Ends


def test_breaks_leave_nothing_behind(proxy: FaultProxy, cache: Cache | None) -> None:
    with remote_loader(f"{proxy.url}/photos", cache) as loader:
        for _ in range(5):
            next(iter(loader))
        files = len(open_files())
        for _ in range(50):
            next(iter(loader))
        # Those that fetch, and that feed the engine; parts of a range have threads while they last.
        until(lambda: len(fastio_threads()) <= 16 + 1)
        # Blocks of the latest iterator, in memory; and for a moment, what iterators before it read.
        until(lambda: len(open_files()) <= files + 24)
    assert not [name for name in open_files() if "memfd:fastio" in name and "deleted" not in name]


def test_loaders_that_were_closed_leave_no_descriptors(proxy: FaultProxy, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 4 * MIB)
    counts = []
    for _ in range(6):
        with remote_loader(f"{proxy.url}/photos", cache) as loader:
            next(iter(loader))
        counts.append(len(open_files()))
    # A thread that was reading when its loader was closed has a connection for a moment.
    until(lambda: len(open_files()) <= counts[1] + 2)


SCRIPT = """
    import sys
    sys.path.insert(0, sys.argv[3])
    from fastio import Cache
    from tests.staging_support import remote_loader
    loader = remote_loader(sys.argv[1], Cache(sys.argv[2]) if sys.argv[2] else None)
    batches = iter(loader)
"""


@pytest.mark.parametrize("latency_s", [0.02, 0.2])
def test_the_interpreter_ends_without_close(
    latency_s: float, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.set(latency_s=latency_s)
    for cache in (None, Cache(tmp_path / "cache", 4 * MIB)):
        where = "" if cache is None else cache.path
        code = textwrap.dedent(SCRIPT) + "next(batches); next(batches)"
        done = run_code(code, f"{proxy.url}/photos", where, REPOSITORY, whole_exit=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_a_batch_is_begun_loses_none(
    proxy: FaultProxy, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, calls = Engine._begin, itertools.count()

    def interrupted(engine: Engine, *arguments: Any) -> None:
        begin(engine, *arguments)
        if threading.current_thread() is threading.main_thread() and next(calls) == 5:
            raise KeyboardInterrupt

    with remote_loader(f"{proxy.url}/photos", Cache(tmp_path / "cache", 16 * MIB)) as loader:
        assert sorted(reference.epoch(loader)) == ALL  # the next epoch is begun by this thread
        reference.crops(1)
        monkeypatch.setattr(Engine, "_begin", interrupted)
        batches, rows, interrupts = iter(loader), [], 0
        while True:
            try:
                batch = next(batches)
            except KeyboardInterrupt:
                interrupts += 1
            except StopIteration:
                break
            else:
                rows += reference.check(loader, batch)
    assert interrupts == 1
    assert sorted(rows) == ALL


def test_ctrl_c_ends_a_wait_for_a_server_that_does_not_answer(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.fail("stall", p=1.0, match="shard-000001")
    told = tmp_path / "pid"
    code = "import os, pathlib, sys; pathlib.Path(sys.argv[4]).write_text(str(os.getpid()))\n"
    code += textwrap.dedent(SCRIPT) + "list(batches)"
    arguments = f"{proxy.url}/photos", tmp_path / "cache", REPOSITORY, told
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_code, code, *arguments)
        while not proxy.struck()["stall"]:
            assert not running.done()
            time.sleep(0.01)
        os.kill(int(told.read_text()), signal.SIGINT)
        # A store gives a request up after a minute: that is what this must not wait for.
        done = running.result(timeout=30)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
