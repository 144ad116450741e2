"""The ranks of one machine open a table with resident=True: time, processor time and memory.

    python benchmarks/ranks.py [--ranks 8] [--megabytes 512] [--rounds 3]

Each round runs one rank, then several that share a copy and the verification of the shards, then
as many that do not know of each other. Each rank opens the dataset, reads a batch, waits until all
shards are copied and verified, and reads all rows. Imports are not measured: ranks wait for one
another after them. They are spawned, because a forked process copies each page of the parent's
objects at its first use.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import fastio
from fastio import _native
from fastio.engine.fields.columns import Columns

_COLUMNS = 32


def make(folder: Path, megabytes: int) -> Path:
    """Packs a table of float32 columns with 16 shards."""
    rows = (megabytes << 20) // (4 * _COLUMNS)
    rng = np.random.default_rng(0)
    table = pa.table({f"x{n}": rng.random(rows, np.float32) for n in range(_COLUMNS)})
    source = folder / "table.arrow"
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 16)
    path = folder / "packed"
    fastio.pack(source, path, shard_size=(megabytes << 20) // 16, progress=False)
    source.unlink()
    return path


def pss(name: str) -> int:
    """Returns this process's part of mapped memory whose name contains `name`, in bytes."""
    found, ours = 0, False
    with open("/proc/self/smaps", errors="surrogateescape") as lines:
        for line in lines:
            first, value, *_ = line.split(maxsplit=5)
            if not first.endswith(":"):
                ours = name in line
            elif first == "Pss:" and ours:
                found += int(value) * 1024
    return found


def private() -> int:
    """Returns the memory that this process alone has, in bytes."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def rank(path: Path, shared: int, barrier: Barrier, results: Any) -> None:
    """Runs one rank, and reports what it took."""
    os.environ["LOCAL_WORLD_SIZE"] = str(shared)
    before = private()
    barrier.wait()
    imported_s = time.process_time()
    begin_s = time.perf_counter()
    dataset = fastio.open(path)
    assert isinstance(dataset, fastio.Dataset)
    layout = dataset.fixed_columns(list(dataset.schema.fields))
    assert layout is not None
    columns = Columns(layout, resident=True)
    engine = _native.Engine(1)

    def gather(rows: Any) -> None:
        out = [np.empty((len(rows), *field.shape), field.dtype) for field in columns.fields]
        slot = columns.gather(engine, rows, out)
        assert slot.wait(600)
        assert not slot.failures()

    gather(np.arange(256))
    first_s = time.perf_counter() - begin_s
    gather(np.linspace(0, len(dataset) - 1, 1024).astype(np.int64))
    while columns.table.resident < dataset.num_shards:
        time.sleep(0.002)
    copied_s = time.perf_counter() - begin_s
    dataset.shards.finish_epoch()
    ready_s = time.perf_counter() - begin_s
    used_s = time.process_time() - imported_s
    for at in range(0, len(dataset), 1 << 16):
        gather(np.arange(at, min(len(dataset), at + (1 << 16))))
    barrier.wait()
    memory = max(0, private() - before) + pss("memfd:fastio-table")
    results.put((first_s, copied_s, ready_s, used_s, memory))
    barrier.wait()
    columns.close()


def run(path: Path, ranks: int, shared: bool) -> None:
    """Runs ranks and prints the slowest times, and the sums of processor time and memory."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(ranks), context.Queue()
    processes = [
        context.Process(target=rank, args=(path, ranks if shared else 1, barrier, results))
        for _ in range(ranks)
    ]
    for process in processes:
        process.start()
    found = np.array([results.get() for _ in processes])
    for process in processes:
        process.join()
    first_s, copied_s, ready_s = found[:, :3].max(0)
    print(
        f"{ranks} rank(s), {'together' if shared else 'alone'}: first batch {first_s:.3f} s, "
        f"copied {copied_s:.2f} s, verified {ready_s:.2f} s, processor {found[:, 3].sum():.2f} s, "
        f"memory {found[:, 4].sum() / 1e6:,.0f} MB",
        flush=True,
    )


def main() -> None:
    """Makes a table and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder), given.megabytes)
        for _ in range(given.rounds):
            run(path, 1, True)
            run(path, given.ranks, True)
            run(path, given.ranks, False)


if __name__ == "__main__":
    main()
