"""Engines and streams that other threads close, drop, or leave without threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import FolderDataset, LoaderClosed
from fastio import transforms as T
from fastio.engine import Engine, EngineSettings
from fastio.order.order import Order
from fastio.order.plan import Plan, PlannedBatch
from tests.pictures import jpeg, png

_LONG_S = 60.0  # a test that waits so long hangs


def folder(path: Path, files: dict[str, bytes]) -> FolderDataset:
    (path / "a").mkdir()
    for name, data in files.items():
        (path / "a" / name).write_bytes(data)
    return FolderDataset(path)


@pytest.fixture
def photos(tmp_path: Path) -> FolderDataset:
    photo = jpeg(700, 900)
    return folder(tmp_path, {f"{number:02}.jpg": photo for number in range(24)})


def make(dataset: FolderDataset, **options: Any) -> Engine:
    steps = T.compile([T.Resize((300, 300))])
    return Engine(dataset, EngineSettings(transforms={"image": steps}, threads=1, **options))


def test_next_says_when_another_thread_closes_the_engine(photos: FolderDataset) -> None:
    """It said "pop from an empty deque"."""
    engine = make(photos)
    stream = engine.run(Plan(Order(len(photos)), 8), epoch=0)
    outcomes: list[BaseException] = []
    waits = threading.Event()

    def consume() -> None:
        try:
            waits.set()
            while True:
                next(stream)
        except BaseException as error:
            outcomes.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    waits.wait(_LONG_S)
    engine.close()
    consumer.join(_LONG_S)
    assert [type(error) for error in outcomes] in ([LoaderClosed], [StopIteration])


def test_engines_can_be_closed_by_several_threads_at_once(photos: FolderDataset) -> None:
    for _ in range(10):
        engine = make(photos)
        next(engine.run(Plan(Order(len(photos)), 2), epoch=0, ahead=4))
        closers = [threading.Thread(target=engine.close) for _ in range(4)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join(_LONG_S)
        assert not any(thread.is_alive() for thread in closers)


class _Interrupted:
    """A native engine whose submit() is interrupted just before its result is noted."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def submit(self, *arguments: Any) -> Any:
        self._native.submit(*arguments)
        raise KeyboardInterrupt


def test_memory_of_a_batch_that_was_interrupted_is_not_written_to(photos: FolderDataset) -> None:
    """Threads wrote to memory that was free already."""
    memory = []

    def allocate(shape: tuple[int, ...], dtype: str) -> Any:
        memory.append(np.zeros(shape, dtype))
        return memory[-1]

    engine = make(photos, allocate=allocate)
    stream = engine.run(Plan(Order(len(photos)), 8), epoch=0, ahead=1)
    native = engine._threads._native
    engine._threads._native = _Interrupted(native)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    afterwards = memory[0].copy()
    engine._threads._native = native
    assert len(list(engine.run(Plan(Order(len(photos)), 8), epoch=1, ahead=1))) == 3
    np.testing.assert_array_equal(memory[0], afterwards)
    engine.close()


def test_garbage_with_a_stream_is_collected_on_a_thread_that_works_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of Pillow's waited for itself."""
    dataset = folder(tmp_path, {f"{number}.png": png() for number in range(8)})
    begun, go_on = threading.Event(), threading.Event()
    read = FolderDataset.image

    def collecting(self: FolderDataset, field: str, row: int) -> Any:
        begun.set()
        go_on.wait(_LONG_S)
        gc.collect()
        return read(self, field, row)

    monkeypatch.setattr(FolderDataset, "image", collecting)

    def leave_garbage() -> None:
        stream: Any = make(dataset).run(Plan(Order(len(dataset)), 4), epoch=0)
        stream._fill(2)
        stream.itself = stream

    gc.disable()
    try:
        leave_garbage()
        begun.wait(_LONG_S)
        workers = [t for t in threading.enumerate() if t.name.startswith("fastio-pillow")]
        assert workers
        go_on.set()
        for worker in workers:
            worker.join(_LONG_S)
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def test_a_batch_that_could_not_be_submitted_raises_what_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised KeyError: the images that are Pillow's were not noted yet."""
    dataset = folder(tmp_path, {f"{number}.png": png() for number in range(4)})

    def refuse(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    engine = make(dataset)
    monkeypatch.setattr("fastio.runtime.threads.DaemonPool.submit", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(engine.run(Plan(Order(4), 2), epoch=0))
    monkeypatch.undo()
    assert len(list(engine.run(Plan(Order(4), 2), epoch=0))) == 2
    engine.close()


def test_an_error_of_the_plan_is_raised_and_leaves_the_engine_usable(photos: FolderDataset) -> None:
    def plan() -> Iterator[PlannedBatch]:
        yield from Plan(Order(len(photos)), 4, drop_last=True)
        raise ZeroDivisionError

    engine = make(photos)
    stream = engine.run(plan(), epoch=0)
    with pytest.raises(ZeroDivisionError):
        list(stream)
    stream.close()
    assert len(list(engine.run(Plan(Order(len(photos)), 8), epoch=0))) == 3
    engine.close()


_TOO_MANY = """
import resource
from fastio import _native
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + (300 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    _native.Engine(1000)
except OSError as error:
    print("raised:", error)
_native.Engine(1).close()
"""


def test_more_threads_than_the_system_gives_are_an_error() -> None:
    """The process was ended by std::terminate; later the error did not say what is missing."""
    command = [sys.executable, "-c", _TOO_MANY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("raised: cannot start 1000 threads: ")
    assert "ulimit -u" in done.stdout
