"""A forked child works whatever the threads of its parent were doing at the fork.

A lock that a thread of the parent holds at the fork is never released in the child. Here another
thread holds every lock of a loader or a dataset that it can get, while this one forks.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import fastio
from fastio import Cache, Loader, PerSample, Resize
from fastio.cache import CacheFolder, Source, keep, kept_source
from fastio.engine.pending import Pending
from fastio.order.plan import PlannedBatch
from fastio.runtime import lifecycle
from fastio.runtime.lifecycle import hold_while_forking, new_lock
from fastio.runtime.properties import cached_property
from fastio.runtime.threads import DaemonPool
from fastio.store.receive import Receiver
from fastio.store.retry import Limits
from tests.children import LIMIT_S, in_fork, run_code
from tests.servers import http_folder
from tests.staging_support import CROPS, MIB, noise, pack_noise, pack_table, remote_loader
from tests.support import numbered_folder

ROWS = 96
_LOCKS = type(threading.Lock()), type(threading.RLock())
_GET_S = 0.02  # for a lock that another thread holds, which goes on holding it meanwhile


def negative(image: Any) -> Any:
    return 255 - image


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    pack_noise(folder / "photos", ROWS)
    pack_table(folder / "table", 2000, 8 << 10)
    numbered_folder(folder / "images")
    for kind in ("png", "jpg"):
        (folder / kind / "a").mkdir(parents=True)
        for row in range(40):
            PillowImage.fromarray(noise(row, 24)).save(folder / kind / "a" / f"{row}.{kind}")
    columns = {"x": np.arange(2000), "y": np.arange(2000) % 7}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=100)
    return folder


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with http_folder(root) as served:
        yield served


# Locks


def _parts(thing: Any) -> Iterator[Any]:
    """The objects that an object refers to, of those that may have locks."""
    if isinstance(thing, Mapping):
        yield from list(thing.values())
    elif isinstance(thing, (list, tuple, set, deque)):
        yield from list(thing)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, MethodType):
        yield thing.__self__
    elif type(thing).__module__.partition(".")[0] in ("fastio", "threading", "concurrent"):
        yield from list(getattr(thing, "__dict__", {}).values())


def locks_of(*things: Any) -> list[Any]:
    """All locks that are reached from objects, and those of the modules and classes of fastio."""
    waiting: list[Any] = list(things)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fastio":
            waiting += vars(module).values()
            kinds = [each for each in vars(module).values() if isinstance(each, type)]
            properties = [each for kind in kinds for each in vars(kind).values()]
            waiting += [p.lock for p in properties if hasattr(p, "lock")]  # of functools
    seen: dict[int, Any] = {}
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen and not isinstance(thing, (type, str, bytes, np.ndarray)):
            seen[id(thing)] = thing
            waiting += _parts(thing)
    ours = {id(lock) for lock in (lifecycle._forking, *lifecycle._held_at_forks)}
    return [each for each in seen.values() if isinstance(each, _LOCKS) and id(each) not in ours]


@contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Has another thread hold locks, or has them held by whoever holds them for longer."""
    ready, end = threading.Event(), threading.Event()

    def hold() -> None:
        held = [lock for lock in locks if lock.acquire(timeout=_GET_S)]
        ready.set()
        end.wait()
        for lock in held:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_lock_is_free_in_a_child() -> None:
    lock = new_lock()
    with held_elsewhere(lock):
        assert in_fork(lambda: lock.acquire(timeout=0)) == 0
        assert lock.locked()
    assert in_fork(lambda: not lock.locked()) == 0


def test_a_fork_waits_for_who_holds_a_lock_that_is_held_while_forking() -> None:
    lock, begun, state = threading.RLock(), threading.Event(), [0]
    hold_while_forking(lock)

    def change() -> None:
        with lock:
            state[0] = 1
            begun.set()
            # Longer than it takes to fork.
            threading.Event().wait(0.2)
            state[0] = 2

    thread = threading.Thread(target=change)
    thread.start()
    begun.wait()
    assert in_fork(lambda: state == [2] and lock.acquire(timeout=0)) == 0
    thread.join()
    assert lock.acquire(timeout=0)


def test_several_threads_that_fork_at_once_wait_for_each_other() -> None:
    first, second = threading.RLock(), threading.RLock()
    hold_while_forking(first)
    hold_while_forking(second)
    found: list[int] = []

    def fork() -> None:
        for _ in range(10):
            found.append(in_thread_fork())

    threads = [threading.Thread(target=fork) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 40


def in_thread_fork() -> int:
    """Forks in any thread: `in_fork` sets signals, which only the main thread may do."""
    while True:
        try:
            child = os.fork()
            break
        except RuntimeError as error:  # of filelock, where others fork while it is told of one
            if "filelock" not in str(error):
                raise
    if not child:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Properties


class Slow:
    """Has a property that one thread computes until it is told to end."""

    def __init__(self, begun: threading.Event, end: threading.Event) -> None:
        self._begun, self._end = begun, end
        self.computed = 0

    @cached_property
    def value(self) -> int:
        """The value."""
        self.computed += 1
        self._begun.set()
        self._end.wait()
        return 3


def test_a_child_computes_a_property_that_its_parent_is_computing() -> None:
    begun, end, told = threading.Event(), threading.Event(), threading.Event()
    told.set()
    slow, other = Slow(begun, end), Slow(told, told)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    begun.wait()
    try:
        assert in_fork(lambda: other.value == 3) == 0
        assert other.value == 3
    finally:
        end.set()
        thread.join()
    assert (slow.value, slow.computed, Slow.value.__doc__) == (3, 1, "The value.")


def test_a_child_plans_batches_while_its_parent_plans_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, end = threading.Event(), threading.Event()

    def keys(rows: Any, occurrences: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            end.wait()
        return rows

    monkeypatch.setattr("fastio.engine.pending.draw_keys", keys)
    rows = np.arange(4)
    parents, childs = (Pending(PlannedBatch(0, rows, 4, 4)) for _ in range(2))
    thread = threading.Thread(target=lambda: parents.keys)
    thread.start()
    begun.wait()
    try:
        assert in_fork(lambda: childs.keys.tolist() == [0, 1, 2, 3]) == 0
    finally:
        end.set()
        thread.join()


def test_no_module_uses_the_property_that_has_a_lock() -> None:
    names = {
        path.name
        for path in Path(fastio.__file__).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if "cached_property" in line and "functools" in line
    }
    assert names == {"properties.py"}  # whose docstring names it


# Pools


def test_a_child_of_a_busy_pool_has_threads_of_its_own() -> None:
    end = threading.Event()
    pool = DaemonPool(1, "test")
    pool.submit(end.wait)
    try:
        with held_elsewhere(pool._lock):
            assert in_fork(lambda: pool.submit(int, "3").result() == 3) == 0
            assert in_fork(lambda: pool.submit_all([list, list]).result() == [[], []]) == 0
    finally:
        end.set()
    assert pool.submit(int, "4").result() == 4


# Loaders and datasets


def _loaders(root: Path, url: str, folder: Path) -> dict[str, Callable[[], Any]]:
    small = [Resize((8, 8))]

    def cache(nbytes: int = 4 * MIB, **options: Any) -> Cache:
        return Cache(folder / "cache", nbytes, **options)

    return {
        "packed images": lambda: Loader(root / "photos", 8, transforms=CROPS, num_workers=2),
        "packed table": lambda: Loader(root / "table", 64, num_workers=2),
        "folder": lambda: Loader(root / "images", 2, transforms=small, num_workers=2),
        "recoded": lambda: Loader(
            root / "jpg", 2, transforms=small, num_workers=2, cache=cache(pack="always")
        ),
        "decoded by Pillow": lambda: Loader(root / "png", 2, transforms=small, num_workers=2),
        "row groups": lambda: Loader(root / "rows.parquet", 64, num_workers=2),
        "per sample in processes": lambda: Loader(
            root / "images",
            2,
            transforms=[*small, PerSample(negative, count=1)],
            multiprocessing_context="fork",
        ),
        "per sample in threads": lambda: Loader(
            root / "images", 2, transforms=[*small, PerSample(negative, workers="threads")]
        ),
        "remote": lambda: remote_loader(f"{url}/photos"),
        "remote with a cache": lambda: remote_loader(f"{url}/photos", cache()),
        "remote table": lambda: Loader(f"{url}/table", 64, shuffle=True, cache=cache()),
    }


@pytest.mark.parametrize("kind", _loaders(Path(), "", Path()))
def test_a_child_reads_an_epoch_though_all_locks_were_held(
    kind: str, root: Path, url: str, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp", reason="obstore does not work in forked processes")
    with _loaders(root, url, tmp_path)[kind]() as loader:
        loader.set_epoch(0)
        steps = len(list(loader))
        batches = iter(loader)
        next(batches)

        def read() -> bool:
            nonlocal batches
            batches = None  # type: ignore[assignment]
            loader.set_epoch(0)
            read = len(list(loader))
            loader.close()
            return read == steps

        with held_elsewhere(*locks_of(loader)):
            assert in_fork(read) == 0


@pytest.mark.parametrize("kind", ["rows.parquet", "table", "photos", "images", "png"])
def test_a_child_reads_samples_though_all_locks_were_held(kind: str, root: Path) -> None:
    with fastio.open(root / kind) as dataset:
        assert len(dataset) > 9

        def read() -> bool:
            return bool(dataset[3]) and bool(dataset[9])

        assert read()
        with held_elsewhere(*locks_of(dataset)):
            assert in_fork(read) == 0


@pytest.mark.parametrize("kind", _loaders(Path(), "", Path()))
def test_an_iterator_of_the_parent_is_an_error_in_a_child(
    kind: str, root: Path, url: str, tmp_path: Path
) -> None:
    with _loaders(root, url, tmp_path)[kind]() as loader:
        batches = iter(loader)
        next(batches)

        def go_on() -> bool:
            with suppress(fastio.LoaderClosed):
                next(batches)
                return False
            return True

        assert in_fork(go_on) == 0


def test_a_child_and_others_see_what_each_of_them_writes_to_a_cache(tmp_path: Path) -> None:
    """A child that inherits SQLite's locks does not lock the files, which others then delete."""
    cache = Cache(tmp_path / "cache", 8 * MIB)
    keep(*_place(cache), 1, b"1")
    mine, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        status = 1
        try:
            keep(*_place(cache), 2, b"2")
            theirs.send(b".")
            theirs.recv(1)  # until the parent has closed it, and opened it again
            keep(*_place(cache), 4, b"4")
            status = 0 if _ready(cache) == [1, 2, 3, 4] else 1
        finally:
            os._exit(status)
    with mine, theirs:
        mine.settimeout(LIMIT_S)
        assert mine.recv(1)
        cache.close()
        keep(*_place(cache), 3, b"3")
        mine.send(b".")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _ready(cache) == [1, 2, 3, 4]
    cache.close()


def _place(cache: Cache) -> tuple[CacheFolder, Source]:
    return kept_source(cache, "test", "url")


def _ready(cache: Cache) -> list[int]:
    folder, source = _place(cache)
    return folder.ready(source)


def test_an_open_cache_is_usable_after_a_fork_and_only_in_the_parent(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache", 8 * MIB) as cache:
        folder, source = _place(cache)
        keep(folder, source, 1, b"1")
        before = folder.index.changes()
        assert folder.index.changes() == before

        def use() -> bool:
            with pytest.raises(fastio.errors.CacheError, match="by the parent process"):
                folder.ready(source)
            return _ready(cache) == [1]

        assert in_fork(use) == 0
        assert folder.ready(source) == [1]
        assert folder.index.changes() != before  # which counted another connection's
        (tmp_path / "cache" / "index.sqlite").unlink()
        assert in_fork(lambda: True) == 0
        with pytest.raises(fastio.errors.CacheError, match="deleted"):
            folder.ready(source)
        assert not (tmp_path / "cache" / "index.sqlite").exists()


class Closing:
    """A connection that takes a while to close."""

    def __init__(self, begun: threading.Event, state: list[str]) -> None:
        self._begun, self._state = begun, state

    def close(self) -> None:
        """Closes it."""
        self._begun.set()
        threading.Event().wait(0.2)  # longer than it takes to fork
        self._state.append("closed")


def test_a_fork_waits_until_an_index_that_is_garbage_is_closed(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache", MIB)
    index = folder.index
    folder.close()
    begun, state = threading.Event(), list[str]()
    index._db = Closing(begun, state)  # type: ignore[assignment]
    held = [index]
    del index, folder
    gc.collect()
    thread = threading.Thread(target=held.clear)
    thread.start()
    assert begun.wait(LIMIT_S)
    assert in_fork(lambda: state == ["closed"]) == 0
    thread.join()


def test_the_look_up_of_a_host_that_never_ends_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **options: end.wait())
    receiver = Receiver("http://localhost:1/", Limits(deadline_s=0.1, timeout_s=0.1))
    with pytest.raises(TimeoutError, match=r"no address of localhost within 0\.1 s"):
        receiver.receive("name", 0, [memoryview(bytearray(1))], 10.0)
    end.set()


def test_a_child_of_a_process_that_has_read_a_lance_dataset_gets_an_error(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance", reason="needs pylance")
    lance.write_dataset(pa.table({"x": np.arange(100)}), tmp_path / "rows.lance")
    # In a process of its own: pylance's threads would hang children of the other tests.
    done = run_code(LANCE, tmp_path / "rows.lance")
    assert (done.returncode, done.stdout) == (0, "100\nNone\n100\n"), done.stderr


LANCE = """
import sys, warnings
import fastio
from fastio.store.receive import Receiver
from fastio.store.retry import Limits
from tests.children import LIMIT_S, in_fork, run_code
warnings.simplefilter("ignore")  # pylance warns of forks

def read():
    return sum(len(batch["x"]) for batch in loader)

def refused():
    try:
        read()
    except fastio.errors.StoreError as error:
        return "does not work in a forked process" in str(error)

with fastio.Loader(sys.argv[1], 10) as loader:
    print(read(), flush=True)
    assert in_fork(refused) == 0
    print(None, flush=True)
    print(read())
"""


def test_a_cache_is_closed_in_a_child_though_its_folder_is_being_opened(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 8 * MIB)
    cache.folder()
    with held_elsewhere(cache._lock):
        assert in_fork(lambda: cache.close() is None) == 0
    cache.close()
