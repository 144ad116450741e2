"""Packed tables: rows a second of shuffled batches, beside tensors in memory and other loaders.

    .venv/bin/python benchmarks/tables.py [--rows 10000000] [--json FILE]

The table is made: 13 float32 features, 26 int32 ones and a float32 label (160 bytes, as Criteo's),
packed by `fastio.pack`, with batches of 16,384 rows in whole random order. Beside it: an index into
tensors in memory, which is the least that a loader over tensors does; DataLoader over a
TensorDataset; Hugging Face datasets where they are installed; and what memory allows: copying the
same bytes in order. Then the row of MLPerf Storage's DLRM benchmark: 200 columns, 761 bytes.

    .venv/bin/python benchmarks/tables.py cold [--rows 10000000] [--folder ON_THE_DISK]

An epoch by windows of a table that is not in the page cache, on a machine that is told to have a
third of its bytes free: with reading ahead and without, beside reading the same files in order.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from common import console, machine_line, new_table, temporary_folder, write_json
from torch.utils.data import DataLoader, TensorDataset

import fastio
from fastio.stage import shuffling

BATCH = 16_384
PIECE = 250_000  # rows that are made at a time
COPYING = 15  # epochs after which a table of 2 M rows is resident, on a machine with two cores
DLRM_ROWS_S = 43.7e6  # that one accelerator of MLPerf Storage's DLRM v2 model takes


def criteo_columns(rows: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Features of `rows` clicks."""
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray[Any, Any]] = {"label": rng.random(rows, np.float32)}
    columns |= {f"I{i}": rng.random(rows, np.float32) for i in range(1, 14)}
    columns |= {f"C{i}": rng.integers(0, 1 << 20, rows, np.int32) for i in range(1, 27)}
    return columns


def dlrm_columns(rows: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """200 columns of 761 bytes a row: 187 of 4 bytes and 13 of one."""
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray[Any, Any]] = {}
    columns |= {f"D{i}": rng.random(rows, np.float32) for i in range(1, 41)}
    columns |= {f"S{i}": rng.integers(0, 1 << 20, rows, np.int32) for i in range(1, 148)}
    columns |= {f"B{i}": rng.integers(0, 100, rows, np.uint8) for i in range(1, 14)}
    return columns


Make = Callable[[int, int], dict[str, np.ndarray[Any, Any]]]


def reader(make: Make, rows: int) -> pa.RecordBatchReader:
    """The table, made piece by piece."""

    def batches() -> Iterator[pa.RecordBatch]:
        for seed, begin in enumerate(range(0, rows, PIECE)):
            yield pa.RecordBatch.from_pydict(make(min(PIECE, rows - begin), seed))

    schema = pa.RecordBatch.from_pydict(make(1, 0)).schema
    return pa.RecordBatchReader.from_batches(schema, batches())


class Figure:
    """Rows a second of a loader: the best of its rounds, and CPU time a row there."""

    def __init__(self) -> None:
        self.rows_s = self.cpu_ns = 0.0

    def take(self, rows: int, seconds: float, cpu: float) -> None:
        """A round."""
        if rows / seconds > self.rows_s:
            self.rows_s, self.cpu_ns = rows / seconds, cpu / rows * 1e9


def run(batches: Callable[[], Iterator[Any]], rounds: int) -> Figure:
    """Goes through batches, whose number of rows is that of their first tensor."""
    figure = Figure()
    for _ in range(rounds):
        rows, start, cpu = 0, time.perf_counter(), time.process_time()
        for batch in batches():
            first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
            rows += len(first)
        figure.take(rows, time.perf_counter() - start, time.process_time() - cpu)
    return figure


def packed(path: Path, threads: int, rounds: int, resident: bool | None) -> Figure:
    """The loader, warm: an epoch before those that count, or as many as the copying takes."""
    with fastio.Loader(
        fastio.open(path, resident=resident), BATCH, shuffle=True, num_workers=threads
    ) as loader:
        run(lambda: iter(loader), COPYING if resident else 1)
        return run(lambda: iter(loader), rounds)


def tensors(path: Path, rows: int) -> list[torch.Tensor]:
    """All of a packed table in memory."""
    with fastio.Loader(path, BATCH) as loader:
        found: dict[str, torch.Tensor] = {}
        at = 0
        for batch in loader:
            for name, values in batch.items():
                if name not in found:
                    found[name] = torch.empty((rows, *values.shape[1:]), dtype=values.dtype)
                found[name][at : at + len(values)] = values
            at += len(values)
    return list(found.values())


def index_tensors(data: list[torch.Tensor], threads: int, rounds: int) -> Figure:
    """Batches by an index into tensors, in an order made before."""
    order = torch.randperm(len(data[0]))
    torch.set_num_threads(threads)

    def batches() -> Iterator[list[torch.Tensor]]:
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            yield [column.index_select(0, rows) for column in data]

    figure = run(batches, rounds)
    torch.set_num_threads(1)
    return figure


def tensor_dataset(data: list[torch.Tensor], workers: int) -> Figure:
    """DataLoader as torch's tutorials use it, for a few batches."""
    loader = DataLoader(
        TensorDataset(*data), BATCH, shuffle=True, num_workers=workers, drop_last=True
    )
    batches = iter(loader)
    next(batches)  # processes start, the order is drawn
    return run(lambda: islice(batches, 8), 1)


def hugging_face(make: Make) -> Figure | None:
    """Datasets with shuffle, formatted as tensors; None where they are not installed."""
    if importlib.util.find_spec("datasets") is None:
        return None
    import datasets  # type: ignore[import-untyped,import-not-found,unused-ignore]

    table = pa.Table.from_batches([pa.RecordBatch.from_pydict(make(PIECE, 0))])
    shuffled = datasets.Dataset(table).shuffle(seed=0).with_format("torch")
    return run(lambda: (shuffled[i : i + 1024] for i in range(0, 8192, 1024)), 1)


def copy_bytes_s(threads: int) -> float:
    """Bytes a second that memory takes in when large blocks are copied in order."""
    torch.set_num_threads(threads)
    source, target = torch.ones(1 << 26), torch.zeros(1 << 26)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        best = max(best, source.nbytes / (time.perf_counter() - start))
    torch.set_num_threads(1)
    return best


def measure(make: Make, groups: dict[str, list[str]], rows: int, rounds: int) -> dict[str, Any]:
    """All figures of a table, in rows a second."""
    with temporary_folder() as work:
        start = time.perf_counter()
        fastio.pack(reader(make, rows), work / "table", groups=groups)
        figures: dict[str, Any] = {"pack": (rows / (time.perf_counter() - start), 0.0)}
        with fastio.open(work / "table") as dataset:
            layout = dataset.schema.record_layout
            figures["row_bytes"] = layout.nbytes if layout else 0
        cores = (1, 2)
        for threads in cores:
            for name, resident in (("packed", None), ("packed, resident", True)):
                figure = packed(work / "table", threads, rounds, resident)
                figures[f"{name} x{threads}"] = figure.rows_s, figure.cpu_ns
        data = tensors(work / "table", rows)
        for threads in cores:
            figure = index_tensors(data, threads, rounds)
            figures[f"index x{threads}"] = figure.rows_s, figure.cpu_ns
        for workers in (0, 2):
            figure = tensor_dataset(data, workers)
            figures[f"TensorDataset, {workers} workers"] = figure.rows_s, figure.cpu_ns
    other = hugging_face(make)
    if other is not None:
        figures["Hugging Face datasets"] = other.rows_s, other.cpu_ns
    for threads in cores:
        figures[f"copying x{threads}"] = copy_bytes_s(threads) / figures["row_bytes"], 0.0
    return figures


def drop_cached(folder: Path) -> None:
    """Has the system forget what it has of a dataset's shards."""
    os.sync()
    for path in folder.glob("shard-*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_in_order(folder: Path) -> None:
    """Reads all shards as files are read that are copied."""
    buffer = bytearray(8 << 20)
    for path in sorted(folder.glob("shard-*")):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cold_epoch(folder: Path, read_ahead: bool) -> None:
    """An epoch by windows, on a machine whose free memory is a third of the table."""
    nbytes = sum(path.stat().st_size for path in folder.glob("shard-*"))
    with (
        mock.patch.object(shuffling, "available_memory", return_value=nbytes // 3),
        fastio.Loader(folder, BATCH, shuffle=True, num_workers=2) as loader,
    ):
        feed: Any = loader._feed
        if not read_ahead:
            feed.settings = replace(feed.settings, read_ahead=False, let_go=False)
        for _ in loader:
            pass


def measure_cold(rows: int, rounds: int, folder: Path | None) -> dict[str, float]:
    """Bytes a second of each way, the best of its rounds, which take turns."""
    ways: dict[str, Callable[[Path], None]] = {
        "files in order": read_in_order,
        "windows, read ahead": lambda path: cold_epoch(path, True),
        "windows, page faults": lambda path: cold_epoch(path, False),
    }
    best = dict.fromkeys(ways, 0.0)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path = Path(work) / "table"
        fastio.pack(reader(criteo_columns, rows), path)
        nbytes = sum(each.stat().st_size for each in path.glob("shard-*"))
        for _ in range(rounds):
            for name, way in ways.items():
                drop_cached(path)
                start = time.perf_counter()
                way(path)
                best[name] = max(best[name], nbytes / (time.perf_counter() - start))
    return best


def show_cold(figures: dict[str, float]) -> None:
    """A table of bytes a second, and what they are to reading in order."""
    table = new_table("cold, larger than memory", "GB/s", "of reading in order")
    for name, bytes_s in figures.items():
        table.add_row(name, f"{bytes_s / 1e9:.2f}", f"{bytes_s / figures['files in order']:.2f}")
    console().print(table)


def show(title: str, figures: dict[str, Any]) -> None:
    """A table of the figures and what they are to the packed loader's."""
    table = new_table(title, "M rows/s", "GB/s", "CPU ns a row", "packed is times this")
    for name, value in figures.items():
        if name == "row_bytes":
            continue
        rows_s, cpu_ns = value
        threads = "2" if name.endswith("x2") or "2 workers" in name else "1"
        times = figures[f"packed x{threads}"][0] / rows_s
        gb_s = rows_s * figures["row_bytes"] / 1e9
        cpu = f"{cpu_ns:.0f}" if cpu_ns else ""
        table.add_row(name, f"{rows_s / 1e6:.3f}", f"{gb_s:.2f}", cpu, f"{times:.2f}")
    console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("warm", "cold"), default="warm")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="cold: where the table is made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console().print(machine_line())
    if arguments.what == "cold":
        cold = measure_cold(arguments.rows, arguments.rounds, arguments.folder)
        show_cold(cold)
        write_json(arguments.json, cold)
        return
    criteo = measure(
        criteo_columns,
        {"dense": [f"I{i}" for i in range(1, 14)], "sparse": [f"C{i}" for i in range(1, 27)]},
        arguments.rows,
        arguments.rounds,
    )
    show("13 float32, 26 int32, label", criteo)
    dlrm = measure(
        dlrm_columns,
        {
            "dense": [f"D{i}" for i in range(1, 41)],
            "sparse": [f"S{i}" for i in range(1, 148)],
            "small": [f"B{i}" for i in range(1, 14)],
        },
        arguments.rows // 5,
        arguments.rounds,
    )
    show("MLPerf Storage's DLRM row", dlrm)
    share = dlrm["packed x2"][0] / DLRM_ROWS_S
    console().print(f"two threads feed {share:.2f} of an accelerator that takes 43.7 M rows/s")
    write_json(arguments.json, {"criteo": criteo, "dlrm": dlrm, "dlrm_share": share})


if __name__ == "__main__":
    main()
