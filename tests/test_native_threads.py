"""Objects of the native module that several Python threads use at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastio import _native
from tests.children import in_fork


def at_once(*works: Callable[[], object]) -> None:
    """Calls all of them at the same time, each in a thread; raises what one of them raises."""
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def raw_images(path: Path, rows: int) -> tuple[_native.FileSet, list[Any]]:
    path.write_bytes(bytes(48 * rows))
    files = _native.FileSet(keep_open=True)
    files.add([str(path)])
    reads = _native.ImageReads(
        np.zeros(rows, np.int32),
        np.arange(rows, dtype=np.int64) * 48,
        np.full(rows, 48, np.int64),
        np.ones(rows, np.uint8),
        np.ones(rows, np.uint8),
        np.full(rows, 4, np.int32),
        np.full(rows, 4, np.int32),
    )
    return files, [reads, 0, np.arange(rows)]


def test_an_image_is_taken_by_one_thread(tmp_path: Path) -> None:
    files, reads = raw_images(tmp_path / "raw", 64)
    engine = _native.Engine(2)
    chain = _native.Chain()
    for _ in range(20):
        slot = engine.submit(files, [(chain, True, None, None)], 0, 0, *reads, None, 3)
        assert slot.wait(60.0)
        taken: list[object] = []

        def take(slot: _native.Slot = slot, taken: list[object] = taken) -> None:
            taken.extend(image for row in range(64) if (image := slot.take(row)) is not None)

        at_once(take, take, take)
        assert len(taken) == 64
    engine.close()


def test_a_geometry_grows_while_it_is_used(tmp_path: Path) -> None:
    files, reads = raw_images(tmp_path / "raw", 16)
    engine = _native.Engine(2)
    one = np.full(50, 4, np.int32)
    for _ in range(5):
        chain = _native.Chain()

        def grow(chain: _native.Chain = chain) -> None:
            for _ in range(200):
                chain.horizontal_flip(0.5)

        def use(chain: _native.Chain = chain) -> None:
            for _ in range(30):
                chain.draws(0, 0, np.arange(50), one, one)
                slot = engine.submit(files, [(chain, True, None, None)], 0, 0, *reads, None, 3)
                assert slot.wait(60.0)
                assert slot.failures() == []

        at_once(grow, use, grow)
    engine.close()


def test_a_table_is_set_gathered_and_closed_by_threads(tmp_path: Path) -> None:
    rows = 4000
    first = np.arange(0, rows + 1, rows // 8)
    mappings = []
    for shard in range(8):
        values = np.arange(first[shard], first[shard + 1], dtype=np.int64)
        (tmp_path / str(shard)).write_bytes(values.tobytes())
        mappings.append(_native.Mapping(str(tmp_path / str(shard))))
    table = _native.Table(first, [8], [(0, 0, 8, 0, 1, 1, 0)])
    table.make_resident()
    engine = _native.Engine(2)

    def change() -> None:
        for _ in range(30):
            for shard, mapping in enumerate(mappings):
                table.set(shard, mapping, [(0, int(np.diff(first)[shard]) * 8)])
            table.unset(3)

    def gather() -> None:
        wanted = np.random.default_rng(1).integers(0, rows, 500)
        for _ in range(60):
            out = np.full(500, -1, np.int64)
            slot = engine.gather(table, wanted, [out.view(np.uint8)])
            table.missing(wanted)
            assert slot.wait(60.0)
            failed = {row for row, _, _ in slot.failures()}
            assert all(out[i] == wanted[i] for i in range(500) if i not in failed)

    at_once(change, gather, gather, change)
    at_once(engine.close, table.close, engine.close, table.close)


def test_an_engine_is_closed_while_batches_are_submitted(tmp_path: Path) -> None:
    files, reads = raw_images(tmp_path / "raw", 16)
    chain = _native.Chain()
    for _ in range(10):
        engine = _native.Engine(2)

        def submit(engine: _native.Engine = engine) -> None:
            for _ in range(20):
                out = np.zeros((16, 4, 4, 3), np.uint8)
                slot = engine.submit(files, [(chain, True, None, out)], 0, 0, *reads, None, 3)
                engine.set_threads(3)
                engine.counters()
                slot.wait(0.0)

        def close(engine: _native.Engine = engine) -> None:
            engine.close()
            files.close()

        at_once(submit, close, submit)


def test_positions_that_are_changed_meanwhile_give_rows_or_an_error() -> None:
    positions, rows = np.zeros(20_000, np.int64), np.zeros(20_000, np.int64)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            positions[:] = 1 << 40
            positions[:] = 0

    def permute() -> None:
        for _ in range(100):
            try:
                _native.permute(1000, 1, positions, rows)
            except ValueError:
                continue
            assert rows.max() < 1000
        done.set()

    at_once(change, permute)


def test_one_decoder_of_columns_serves_threads() -> None:
    decoder = _native.ColumnDecoder()
    none = np.zeros(0, np.uint8)

    def decode() -> None:
        for _ in range(200):
            try:
                decoder.decode(
                    np.zeros(64, np.uint8), 4, 4, False, False, np.zeros(16, np.uint8), none
                )
            except ValueError:
                continue

    at_once(decode, decode, decode)


def test_a_child_closes_an_engine_whose_lock_a_thread_of_its_parent_held() -> None:
    """A forked child has the lock as it was: held for ever, about one time in three here."""
    engine = _native.Engine(2)
    ended = threading.Event()

    def resize() -> None:
        while not ended.is_set():
            engine.set_threads(2)

    def work() -> bool:
        nonlocal engine
        engine.close()
        engine.close()
        del engine
        return True

    threads = [threading.Thread(target=resize) for _ in range(2)]
    for thread in threads:
        thread.start()
    failed = next((status for _ in range(30) if (status := in_fork(work))), 0)
    ended.set()
    for thread in threads:
        thread.join()
    engine.close()
    assert not failed
