"""A read that hangs for ever, as of a file server that is gone, keeps nobody from leaving."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import fastio
from fastio import StoreError
from fastio.packed.comparisons import Comparisons
from fastio.store.retry import attempt
from tests.children import run_code

# The reads of some data hang; the process leaves in one of several ways, and ends.
SCRIPT = """
import os, signal, sys, threading, time

import fsspec

import fastio
import fastio.sources.folder as folder
import fastio.sources.table.parquet as parquet
import fastio.stage.warming as warming
from fastio.sources.table.direct import TableDataset
from fastio.store import Store

how, what, data = sys.argv[1:]
reading, for_ever = threading.Event(), threading.Event()


def hang(*arguments, **more):
    reading.set()
    for_ever.wait()


if what == "warm":
    fsspec.filesystem("memory").put(data + "/packed", "/packed", recursive=True)
    warming.receive = hang
elif what == "images":
    loader = fastio.Loader(data, 2, num_workers=2)
    folder.read_file = hang
elif what == "ahead":
    fsspec.filesystem("memory").put(data, "/t.parquet")
    loader = fastio.Loader(fastio.open("memory://t.parquet", memory="8MiB"), 2, num_workers=2)
    Store.read = Store.read_into = hang
elif what == "columns":
    parquet.available_cores = lambda: 2
    loader = fastio.Loader(fastio.open(data, memory="8MiB"), 2, num_workers=8, shuffle=False)
    parquet._decode = hang
else:
    rows = fastio.open(data, memory="8MiB")
    loader = fastio.Loader(rows, 2, num_workers=2, shuffle=what == "shuffled")
    TableDataset.read = hang


def consume():
    try:
        if what == "warm":
            fastio.warm("memory://packed", data + "/cache")
        else:
            next(iter(loader))
    except fastio.LoaderClosed:
        pass


if how == "interrupt":
    def press():
        reading.wait()
        time.sleep(0.5)  # until the main thread waits
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    # Another thread gets the signal, so that it interrupts no wait of this one. A signal that
    # arrives just before a wait begins does not interrupt it either.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        consume()
    except KeyboardInterrupt:
        print("left")
else:
    threading.Thread(target=consume, daemon=True).start()
    reading.wait()
    if how == "close":
        loader.close()
    print("left")
"""


@pytest.mark.parametrize("how", ["close", "exit", "interrupt"])
def test_who_leaves_does_not_wait_for_a_read_that_hangs(how: str, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(4):
        pixels = np.zeros((8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "class" / f"{number}.png")
    leave(how, "images", tmp_path)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("close", "in order"),
        *((how, "shuffled") for how in ("close", "exit", "interrupt")),
        *((how, "columns") for how in ("close", "exit", "interrupt")),
        *((how, "ahead") for how in ("close", "exit", "interrupt")),
    ],
)
def test_who_leaves_does_not_wait_for_row_groups(how: str, what: str, tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100), "y": np.arange(100)})
    rows = 100 if what == "columns" else 10
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows, compression="none")
    leave(how, what, tmp_path / "t.parquet")


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_who_leaves_does_not_wait_for_a_cache_that_is_warmed(how: str, tmp_path: Path) -> None:
    schema = fastio.Schema({"image": fastio.Image()})
    with fastio.Writer(tmp_path / "packed", schema, codec="raw") as writer:
        writer.write({"image": np.zeros((8, 8, 3), np.uint8)})
    leave(how, "warm", tmp_path)


def leave(how: str, what: str, data: Path) -> None:
    """Runs the script to its end."""
    done = run_code(SCRIPT, how, what, data, whole_exit=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "left\n"


def test_who_closes_does_not_wait_for_columns_that_are_compared() -> None:
    comparing, for_ever = threading.Event(), threading.Event()
    comparisons = Comparisons("none", 0, "none", 1)

    def compare() -> None:
        comparing.set()
        for_ever.wait()

    comparisons.add(compare)
    waiting = threading.Thread(target=comparisons.finish)
    try:
        comparing.wait()
        waiting.start()
        comparisons.close()
        waiting.join()
    finally:
        for_ever.set()


def test_a_comparison_that_fails_for_any_reason_is_not_waited_for() -> None:
    comparisons = Comparisons("none", 0, "none", 1)

    def compare() -> None:
        raise MemoryError("no room to hash")

    comparisons.add(compare)
    assert isinstance(error_of_finish(comparisons), MemoryError)


def test_comparisons_are_not_waited_for_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = Comparisons("none", 0, "none", 1)
    compared = threading.Event()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            comparisons.add(compared.set)
    assert error_of_finish(comparisons) is None
    comparisons.add(lambda: None)
    assert error_of_finish(comparisons) is None
    assert compared.is_set()  # those that had no thread are compared by the next one


def error_of_finish(comparisons: Comparisons) -> BaseException | None:
    """Returns what `finish` raises; it must end within a minute."""
    found: list[BaseException] = []

    def finish() -> None:
        try:
            comparisons.finish()
        except BaseException as error:
            found.append(error)

    waiting = threading.Thread(target=finish, daemon=True)
    waiting.start()
    waiting.join(60.0)
    assert not waiting.is_alive()
    return found[0] if found else None


WORKERS = """
import sys, threading, time, warnings
from multiprocessing.process import BaseProcess

import fastio
from fastio.sources import torch_dataset

torch_dataset._WORKERS_S = WAITS_S = 3.0  # instead of the five seconds of DataLoader
how, persistent = sys.argv[1:]
warnings.simplefilter("ignore")
in_vain_s, join = [], BaseProcess.join


def counting(process, timeout=None):
    join(process, timeout)
    if process.is_alive():
        in_vain_s.append(timeout)


BaseProcess.join = counting


class Hanging:
    def __len__(self):
        return 100

    def __getitem__(self, row):
        if row >= 8:
            time.sleep(1e6)
        return row


workers = 6
loader = fastio.Loader(
    Hanging(), 2, num_workers=workers, multiprocessing_context="fork",
    persistent_workers=persistent == "True",
    timeout=1 if how == "timeout" else 0,
)
batches = iter(loader)
if how == "timeout":
    try:
        list(batches)
    except RuntimeError as error:
        assert "timed out" in str(error)
    thread = None
else:
    for _ in range(4):
        next(batches)

    def consume():
        try:
            next(batches)
        except fastio.LoaderClosed:
            print("told")

    thread = threading.Thread(target=consume)
    thread.start()

    def waits():
        frame = sys._current_frames().get(thread.ident)
        while frame is not None and frame.f_code.co_name != "_try_get_data":
            frame = frame.f_back
        return frame is not None

    while not waits():
        time.sleep(0.01)
processes = list(loader._feed.reader()._latest()._workers)
assert len(processes) == workers
loader.close()
if thread is not None:
    thread.join()
assert not any(process.is_alive() for process in processes)
# DataLoader's own way waits so long for each of them.
print("left", sum(in_vain_s) < 2 * WAITS_S)
"""


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["timeout", "close"])
def test_worker_processes_that_hang_are_ended_together(how: str, persistent: bool) -> None:
    done = run_code(WORKERS, how, persistent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("told\n" if how == "close" else "") + "left True\n"


@pytest.mark.parametrize("library", ["obstore", "fsspec"])
@pytest.mark.parametrize(
    "name", ["data", "a.tar", "a-{0..2}.tar", "a.parquet", "a.arrow", "a.csv", "t-*.parquet"]
)
def test_a_server_that_never_answers_ends_an_open_at_one_deadline(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return attempt(*arguments, **options)

    monkeypatch.setattr("fastio.store.api.attempt", counted)
    monkeypatch.setattr("fastio.store.api._DEADLINE_S", 0.4)
    monkeypatch.setattr("fastio.store.api._TIMEOUT_S", 0.2)
    if library == "fsspec":
        monkeypatch.setattr("fastio.store.backends._try_obstore", lambda *_: (None, ""))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:  # accepts, and no more
        url = f"http://127.0.0.1:{server.getsockname()[1]}/{name}"
        with pytest.raises(StoreError, match=r"cannot be (read|listed): .*no response"):
            fastio.open(url)
    assert len(calls) == 1
