"""How loaders and their iterators end, and how they get along with processes and signals."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastio
from fastio import Loader
from fastio.engine.pending import Feeder
from fastio.stage import Stager
from tests.children import LIMIT_S, in_fork, run_code
from tests.numbered import loader, rows_of
from tests.support import threads, told, until
from tests.torch_support import OwnDataset

# Ending


def test_close_ends_every_thread_and_may_be_called_twice(folder: Path) -> None:
    with loader(folder) as warm:  # what torch and OpenMP start stays
        list(warm)
    before = threads()
    batches = loader(folder, num_workers=3)
    iterator = iter(batches)
    next(iterator)
    batches.close()
    batches.close()
    until(lambda: threads() <= before)


def test_a_loader_that_is_dropped_ends_its_threads(folder: Path) -> None:
    with loader(folder) as warm:
        list(warm)
    before = threads()
    batches = loader(folder, num_workers=3)
    next(iter(batches))
    del batches
    gc.collect()
    until(lambda: threads() <= before)


def test_a_loader_of_blocks_that_is_dropped_ends_the_threads_that_fetch_and_await_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, stage = threading.Event(), Stager._stage

    def stage_late(stager: Stager, block: Any) -> None:  # a batch that finds all does not wait
        waiting.wait()
        stage(stager, block)

    def put(feeder: Feeder, pending: Any) -> None:
        feeder._queue.put(pending)
        waiting.set()

    monkeypatch.setattr(Stager, "_stage", stage_late)
    monkeypatch.setattr(Feeder, "put", put)
    images = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    pq.write_table(pa.table({"image": images}), tmp_path / "images.parquet")
    before = set(threading.enumerate())
    gc.disable()
    try:
        table = fastio.open(tmp_path / "images.parquet", images=["image"])
        batches = Loader(table, 1, transforms=[fastio.Resize((8, 8))])
        next(iter(batches))
        new = set(threading.enumerate()) - before
        ours = [thread for thread in new if thread.name in ("fastio-feeder", "fastio-fetch")]
        assert len(ours) >= 3  # with one that fetches, nobody keeps the stager for another
        del batches, table
        for thread in ours:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread.name
    finally:
        gc.enable()


def test_batches_that_failed_ahead_are_dropped_with_their_loader(tmp_path: Path) -> None:
    fastio.pack([{"text": "abc" * row} for row in range(100)], tmp_path / "p", shard_size=2000)
    shards = sorted((tmp_path / "p").glob("shard-*"))
    damaged = bytearray(shards[4].read_bytes())
    third = len(damaged) // 3
    damaged[third : third + 200] = b"\xff" * 200
    shards[4].write_bytes(damaged)
    batches = Loader(tmp_path / "p", 4)
    iterator = iter(batches)
    with pytest.raises(fastio.ShardCorrupt):
        list(iterator)
    del batches, iterator
    gc.collect()  # pytest raises what finalizers raise


def test_a_closed_loader_says_so(folder: Path) -> None:
    batches = loader(folder)
    iterator = iter(batches)
    batches.close()
    with pytest.raises(fastio.LoaderClosed):
        iter(batches)
    with pytest.raises(fastio.LoaderClosed):
        next(iterator)


def test_tensors_outlive_their_loader(folder: Path) -> None:
    with loader(folder) as batches:
        images, labels = next(iter(batches))
    del batches
    gc.collect()
    assert told(images) == [0, 1, 2, 3, 4]
    assert labels.tolist() == [0] * 5


def test_two_iterators_at_once_have_an_epoch_each(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        zero, one = iter(batches), iter(batches)
        interleaved = [(told(next(zero)[0]), told(next(one)[0])) for _ in range(5)]
        batches.set_epoch(0)
        assert [pair[0] for pair in interleaved] == rows_of(batches)
        assert [pair[1] for pair in interleaved] == rows_of(batches)


def test_an_iterator_that_ended_stays_ended(folder: Path) -> None:
    with loader(folder) as batches:
        iterator = iter(batches)
        list(iterator)
        assert next(iterator, None) is None


def test_breaks_leave_no_threads_behind(folder: Path) -> None:
    with loader(folder, num_workers=2) as batches:
        next(iter(batches))
        before = threads()
        for _ in range(20):
            for _ in batches:
                break
        until(lambda: threads() <= before)


# Processes


def test_a_pickled_loader_goes_on_where_it_stood(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        list(batches)
        copy = pickle.loads(pickle.dumps(batches))
        with copy:
            assert rows_of(copy) == rows_of(batches)


def epoch_in_a_child(batches: Loader, result: Any) -> None:
    result.put(rows_of(batches))
    batches.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_works_in_a_child_process_while_its_parent_uses_it(
    folder: Path, method: str
) -> None:
    context: Any = multiprocessing.get_context(method)
    with loader(folder, shuffle=True) as batches:
        iterator = iter(batches)
        next(iterator)
        batches.set_epoch(0)
        queue = context.Queue()
        child = context.Process(target=epoch_in_a_child, args=(batches, queue))
        child.start()
        there = queue.get(timeout=120)
        child.join(timeout=120)
        assert child.exitcode == 0
        assert len(list(iterator)) == 4
        assert rows_of(batches) == there


def test_a_child_closes_a_loader_that_a_thread_of_its_parent_uses(folder: Path) -> None:
    """Whatever lock of Python or of the native threads is held while it is forked."""
    ended = threading.Event()
    with loader(folder) as batches:

        def use() -> None:
            while not ended.is_set():
                list(batches)

        def work() -> bool:
            batches.close()
            return True

        thread = threading.Thread(target=use)
        thread.start()
        failed = next((status for _ in range(30) if (status := in_fork(work))), 0)
        ended.set()
        thread.join()
    assert not failed


INTERRUPTED = """
import signal, sys, fastio
loader = fastio.Loader(sys.argv[1], 2, transforms=[fastio.Resize((8, 8))])
try:
    while True:
        for number, batch in enumerate(loader):
            if number == 3:
                signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    loader.close()
    print("interrupted")
"""


def test_ctrl_c_ends_an_epoch(folder: Path) -> None:
    done = run_code(INTERRUPTED, folder)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_importing_fastio_imports_neither_torch_nor_pandas() -> None:
    """Each takes as long as all else together."""
    code = "import fastio, sys; print({'torch', 'pandas'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_opening_a_packed_dataset_does_not_import_pandas(folder: Path, tmp_path: Path) -> None:
    """pyarrow imports it, if it is installed, in `to_numpy`."""
    fastio.pack(folder, tmp_path / "packed")
    code = (
        "import fastio, sys\n"
        "loader = fastio.Loader(sys.argv[1], 4, transforms=[fastio.Resize((4, 4))])\n"
        "next(iter(loader))\n"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "packed")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_forked_child_takes_no_batch_from_the_workers_of_its_parent(workers: int) -> None:
    # A forked child cannot use the fork server of its parent.
    method = "fork" if workers else None
    with Loader(OwnDataset(40), 4, num_workers=workers, multiprocessing_context=method) as loader:
        assert loader.path == "torch"
        batches = iter(loader)
        first = next(batches)[0].tolist()

        def go_on() -> bool:
            with pytest.raises(fastio.LoaderClosed):
                next(batches)
            batches.close()
            return next(iter(loader))[0].tolist() == first

        assert in_fork(go_on) == 0
        rest = [row for batch in batches for row in batch[0].tolist()]
        assert first + rest == list(range(40))
