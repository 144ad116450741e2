"""Parquet files as they are: shuffled batches, beside what pyarrow needs for decoding alone.

    .venv/bin/python benchmarks/parquet_direct.py [--rows 4000000] [--threads 2] [--json FILE]

The table is made: 13 float32 features, 26 int32 ones and a float32 label (160 bytes, as Criteo's),
in Snappy and dictionaries as pyarrow writes by default, in row groups of 131,072 rows and several
files. All of these use the same number of threads, in turns, warm:

- pyarrow decodes row groups, and drops them: `read_row_group`, and `iter_batches`, in the faster
  of its ways to read (mapped, buffered, pre-buffered);
- pyarrow, NumPy's stack and torch, in the files' order, batch by batch;
- this loader, in the files' order, and shuffled by windows.

A rate is the median of the rounds; CPU is of the whole process. "MiB more" is the most memory that
the loader's epoch added, of what is not mapped from files.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from common import console, machine_line, new_table, temporary_folder, write_json
from tables import criteo_columns

import fastio

BATCH = 16_384
GROUP_ROWS = 131_072
FILES = 4
GROUPS = {"dense": [f"I{i}" for i in range(1, 14)], "sparse": [f"C{i}" for i in range(1, 27)]}
WAYS: dict[str, dict[str, Any]] = {
    "mapped": {"memory_map": True},
    "buffered": {"buffer_size": 1 << 20},
    "pre-buffered": {"pre_buffer": True},
}


def make(folder: Path, rows: int) -> list[Path]:
    """The table, in several files. Features repeat, as they do in logs of clicks."""
    paths = []
    rng = np.random.default_rng(0)
    for number in range(FILES):
        columns = criteo_columns(rows // FILES, number)
        for name in GROUPS["sparse"]:
            columns[name] = (rng.zipf(1.3, len(columns[name])) % 1_000_000).astype(np.int32)
        paths.append(folder / f"{number}.parquet")
        pa.parquet.write_table(pa.table(columns), paths[-1], row_group_size=GROUP_ROWS)
    return paths


def row_groups(paths: list[Path], threads: int, work: Callable[[Any, int], None], way: str) -> None:
    """Does some work for each row group, by threads that have the files open."""
    local = threading.local()

    def one(job: tuple[Path, int]) -> None:
        path, number = job
        files = local.__dict__.setdefault("files", {})
        if path not in files:
            files[path] = pa.parquet.ParquetFile(path, **WAYS[way])
        work(files[path], number)

    counts = {path: pa.parquet.ParquetFile(path).num_row_groups for path in paths}
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, [(path, number) for path in paths for number in range(counts[path])]))


def read_row_group(file: Any, number: int) -> None:
    file.read_row_group(number, use_threads=False)


def iter_batches(file: Any, number: int) -> None:
    for _ in file.iter_batches(BATCH, row_groups=[number], use_threads=False):
        pass


def stacked(paths: list[Path], threads: int) -> None:
    """Batches as one writes them: pyarrow, NumPy and torch, row groups by threads."""
    ready: Queue[dict[str, torch.Tensor] | None] = Queue(2 * threads)

    def work(file: Any, number: int) -> None:
        for batch in file.iter_batches(BATCH, row_groups=[number], use_threads=False):
            found = {"label": torch.from_numpy(batch["label"].to_numpy().copy())}
            for name, members in GROUPS.items():
                values = np.stack([batch[member].to_numpy() for member in members], axis=1)
                found[name] = torch.from_numpy(values)
            ready.put(found)

    def produce() -> None:
        row_groups(paths, threads, work, "mapped")
        ready.put(None)

    producer = threading.Thread(target=produce)
    producer.start()
    while ready.get() is not None:
        pass
    producer.join()


def private_bytes() -> int:
    """Memory of this process that is not mapped from files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most bytes of memory that are used inside, beyond those used before, every 5 ms."""
    before, found, done = private_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            found[0] = max(found[0], private_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def measure(rows: int, threads: int, rounds: int, memory: str) -> dict[str, Any]:
    """Rows a second, CPU nanoseconds a row of each way, and the loader's memory."""
    with temporary_folder() as folder:
        paths = make(folder, rows)
        names = [str(path) for path in paths]

        def loader_of(shuffle: bool) -> fastio.Loader:
            data = fastio.open(names, groups=GROUPS, memory=memory)
            return fastio.Loader(data, BATCH, shuffle=shuffle, num_workers=threads)

        with peak() as most, loader_of(True) as loader:
            for _ in loader:
                pass
        ways: dict[str, Callable[[], Any]] = {
            f"pyarrow: {work.__name__}, {way}": partial(row_groups, paths, threads, work, way)
            for work in (read_row_group, iter_batches)
            for way in WAYS
        }
        ways["pyarrow + NumPy + torch"] = lambda: stacked(paths, threads)
        ordered, shuffled = loader_of(False), loader_of(True)
        ways["fastio, in order"] = lambda: [None for _ in ordered]
        ways["fastio, shuffled"] = lambda: [None for _ in shuffled]
        total = len(shuffled.dataset)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for round_number in range(rounds + 1):
            for name, way in ways.items():
                start, cpu = time.perf_counter(), time.process_time()
                way()
                seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
                if round_number:
                    taken[name].append((total / seconds, cpu / total * 1e9))
        ordered.close()
        shuffled.close()
    medians = {n: [statistics.median(v) for v in zip(*t, strict=True)] for n, t in taken.items()}
    return {"rates": medians, "more_mib": most[0] / 2**20, "memory": memory, "threads": threads}


def show(result: dict[str, Any]) -> None:
    """A table of the figures and what the shuffled loader's are to them."""
    table = new_table(
        f"{result['threads']} threads", "M rows/s", "CPU ns a row", "fastio is times this", "by CPU"
    )
    rate, nanoseconds = result["rates"]["fastio, shuffled"]
    for name, (rows_s, cpu_ns) in result["rates"].items():
        table.add_row(
            name,
            f"{rows_s / 1e6:.2f}",
            f"{cpu_ns:.0f}",
            f"{rate / rows_s:.2f}",
            f"{cpu_ns / nanoseconds:.2f}",
        )
    console().print(table)
    console().print(f"memory={result['memory']}: an epoch took {result['more_mib']:.0f} MiB more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console().print(machine_line())
    result = measure(arguments.rows, arguments.threads, arguments.rounds, arguments.memory)
    show(result)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
