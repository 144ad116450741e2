"""A worker that does not come back (its file system does not answer) keeps nobody waiting."""

from __future__ import annotations

import gc
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio import Scalar, Schema, _native
from tests.children import run_code
from tests.hanging import HangingMemory

ENOUGH_S = 30.0  # far more than `close` may take, far less than for ever


def table_of(path: Path, rows: int) -> _native.Table:
    path.write_bytes(np.arange(rows, dtype=np.int64).tobytes())
    table = _native.Table(np.array([0, rows], np.int64), [8], [(0, 0, 8, 0, 1, 1, 0)])
    table.set(0, _native.Mapping(str(path)), [(0, 8 * rows)])
    return table


def hanging_slot(path: Path, engine: _native.Engine, memory: HangingMemory) -> _native.Slot:
    slot = engine.gather(table_of(path, 100), np.arange(100), [memory.array])
    assert memory.touched(60.0)
    return slot


def seconds_of(action: object) -> float:
    began_s = time.monotonic()
    assert callable(action)
    action()
    return time.monotonic() - began_s


def test_an_engine_is_closed_while_a_worker_hangs(tmp_path: Path) -> None:
    with HangingMemory(800) as memory:
        engine = _native.Engine(2)
        slot = hanging_slot(tmp_path / "shard", engine, memory)
        assert seconds_of(engine.close) < ENOUGH_S
        assert not slot.wait(0)
        memory.let_go()
        assert slot.wait(60.0)
        assert memory.array[:800].view(np.int64).tolist() == list(range(100))


def test_memory_that_a_hanging_worker_will_write_to_outlives_its_slot(tmp_path: Path) -> None:
    with HangingMemory(800) as memory:
        engine = _native.Engine(1)
        slot = hanging_slot(tmp_path / "shard", engine, memory)
        kept = weakref.ref(memory.array.base)  # type: ignore[arg-type]
        array, memory.array = memory.array, np.zeros(0, np.uint8)
        del array

        def let_go_of_the_slot() -> None:
            nonlocal slot
            slot = None  # type: ignore[assignment]

        assert seconds_of(let_go_of_the_slot) < ENOUGH_S
        gc.collect()
        assert kept() is not None
        memory.let_go()
        engine.close()
        for _ in range(600):  # the next batch of any engine finds that it is done
            other = _native.Engine(1)
            other.gather(
                table_of(tmp_path / "other", 1), np.zeros(1, np.int64), [np.zeros(8, "u1")]
            )
            if kept() is None:
                return
            time.sleep(0.1)
        raise AssertionError("the memory is never given back")


def test_other_threads_run_while_a_slot_that_hangs_is_let_go_of(tmp_path: Path) -> None:
    with HangingMemory(800) as memory:
        engine = _native.Engine(1)
        slots = [hanging_slot(tmp_path / "shard", engine, memory)]
        counted = [0]
        done = threading.Event()

        def count() -> None:
            while not done.is_set():
                counted[0] += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        slots.clear()  # waits for the row in hand, for a while
        assert counted[0] > before + 10
        done.set()
        thread.join()
        memory.let_go()


PROGRAM = """
import sys, threading
sys.path[:0] = {path!r}
import numpy as np
from pathlib import Path
from tests.hanging import HangingMemory
from fastio.engine import Engine, EngineSettings
from fastio.order.plan import Plan
from fastio.order.order import Order
import fastio

memory = HangingMemory(1 << 20)
def allocate(shape, dtype):
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return memory.array[:count].view(dtype).reshape(shape)
dataset = fastio.open({data!r})
engine = Engine(dataset, EngineSettings(transforms={{}}, allocate=allocate, threads=2))
stream = engine.run(Plan(Order(len(dataset), mode="sequential"), 8), epoch=0)
stream.ready()
assert memory.touched(60)
print("hangs", flush=True)
{end}
print("closed", flush=True)
"""


@pytest.mark.parametrize("end", ["engine.close()", "del stream, engine", "pass"])
def test_a_loader_ends_while_a_worker_hangs(tmp_path: Path, end: str) -> None:
    with HangingMemory(1):
        pass  # or the test is skipped
    data = packed_numbers(tmp_path / "data")
    program = textwrap.dedent(PROGRAM).format(path=sys.path, data=str(data), end=end)
    ran = run_code(program, whole_exit=True)
    assert ran.stdout.split() == ["hangs", "closed"], ran.stderr
    assert ran.returncode == 0, ran.stderr


def packed_numbers(path: Path) -> Path:
    with fastio.Writer(path, Schema({"number": Scalar("int64")})) as writer:
        for number in range(64):
            writer.write({"number": number})
    return path
