"""Getting at the bytes: orders, cold local reads, remote data and its cache.

    .venv/bin/python benchmarks/access.py [PART ...] [--json FILE] [--folder DIR] [--rounds 5]

Parts: order, cold, folder, and over loopback http, latency, budget (`access_remote`); all where
none is named. Each prints one table. The data lie in a temporary folder of --folder, which must be
on the disk that is to be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from access_remote import budget_part, http_part, latency_part
from common import console, machine, machine_line, new_table, resident_mb, write_json

import fastio
from fastio.order.order import Order
from fastio.runtime.memory import total_memory
from fastio.stage import shuffling
from fastio.transforms import CenterCrop

# Beside the tools, which common puts on the path.
import plain_torchvision  # isort: skip
from make_images import make_images  # isort: skip

Part = Callable[[argparse.Namespace, Path], dict[str, Any]]

# What fio is asked for; the goal is a share of what these reach.
FIO = {
    "fio io_uring, 32 deep": ("--ioengine=io_uring", "--iodepth=32", "--direct=1"),
    "fio psync, 8 threads": ("--ioengine=psync", "--numjobs=8", "--thread", "--direct=1"),
}


# --- order ----------------------------------------------------------------------------------------


def order_part(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Orders of 1e10 rows: what one costs to make, and its positions a second on this thread."""
    rows = 10**10
    kinds = {
        "shuffle": Order(rows, seed=1),
        "window": Order(rows, seed=1, mode="window"),
    }
    table = new_table(
        "1e10 rows", "made in ms", "Python MB", "resident MB", "at M/s", "inverse M/s"
    )
    found: dict[str, Any] = {}
    for name, order in kinds.items():
        figures = making_cost(order) | speeds(order, arguments.rounds)
        table.add_row(
            name,
            f"{figures['ms']:.3f}",
            f"{figures['python_mb']:.4f}",
            f"{figures['resident_mb']:.2f}",
            f"{figures['at'] / 1e6:.0f}",
            f"{figures['inverse'] / 1e6:.0f}",
        )
        found[name] = figures
    console().print(table)
    return found


def making_cost(order: Order) -> dict[str, float]:
    """Milliseconds and megabytes of making an order anew and asking for its first row."""
    before = resident_mb()
    tracemalloc.start()
    begin = time.perf_counter()
    again = Order(order.rows, seed=2, mode=order.mode)
    again.at([0])
    seconds = time.perf_counter() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"ms": seconds * 1e3, "python_mb": peak / 1e6, "resident_mb": resident_mb() - before}


def speeds(order: Order, rounds: int) -> dict[str, float]:
    """Positions and rows a second of this thread's processor time, the best of the rounds."""
    positions = np.arange(123_456_789, 123_456_789 + 1_000_000)
    rows = order.at(positions)

    def per_s(work: Callable[[npt.NDArray[np.int64]], object], of: npt.NDArray[np.int64]) -> float:
        seconds = []
        for _ in range(rounds):
            begin = time.thread_time()
            work(of)
            seconds.append(time.thread_time() - begin)
        return len(of) / min(seconds)

    return {"at": per_s(order.at, positions), "inverse": per_s(order.positions, rows)}


# --- cold -----------------------------------------------------------------------------------------


class Pixels:
    """Images of random pixels, 129 KB on average, which no disk can compress."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> dict[str, Any]:
        random = np.random.default_rng(row)
        height, width = (int(side) for side in random.integers(160, 256, 2))
        pixels = np.frombuffer(random.bytes(height * width * 3), np.uint8)
        return {"image": pixels.reshape(height, width, 3)}


def drop(paths: Iterable[Path]) -> None:
    """Takes files out of the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def epoch_mb_s(dataset: Path, seed: int, direct: bool = False) -> tuple[float, float]:
    """MB read a second in a shuffled epoch of two threads, and processor seconds a GB.

    direct: past the page cache, as for data of more than twice the memory.
    """
    memory = 0 if direct else total_memory()
    with (
        mock.patch.object(shuffling, "total_memory", return_value=memory),
        fastio.Loader(
            dataset,
            batch_size=64,
            shuffle=True,
            seed=seed,
            num_workers=2,
            transforms=[CenterCrop(32)],
        ) as loader,
    ):
        processor, begin = time.process_time(), time.perf_counter()
        for _ in loader:
            pass
        seconds = time.perf_counter() - begin
        read = loader.stats().bytes_read
        return read / seconds / 1e6, (time.process_time() - processor) / read * 1e9


def fio_mb_s(options: tuple[str, ...], file: Path, block: int) -> float:
    """MB a second of fio's random reads of `block` bytes of a file."""
    drop([file])
    command = ["fio", "--name=cold", f"--filename={file}", "--rw=randread", f"--bs={block}"]
    command += ["--runtime=3", "--time_based", "--randrepeat=0", "--group_reporting"]
    done = subprocess.run(
        [*command, "--output-format=json", *options], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return float(report["jobs"][0]["read"]["bw_bytes"]) / 1e6


def cold_part(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """A packed dataset of raw images that is not in the page cache, beside fio's random reads."""
    packed, file = work / "raw", work / "fio.dat"
    report = fastio.pack(Pixels(arguments.rows), packed, codec="raw")
    shards = sorted(packed.glob("*.arrow"))
    with file.open("wb") as joined:
        for shard in shards:
            joined.write(shard.read_bytes())
    block = round(report.bytes / report.rows / 4096) * 4096
    peers = FIO if shutil.which("fio") else {}
    if not peers:
        print("fio is not installed: no comparison", file=sys.stderr)
    names = ["fastio, direct", "fastio, cold", "fastio, cached", *peers]
    mb_s: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names[:3]}
    epoch_mb_s(packed, 0)
    for seed in range(arguments.rounds):  # side by side: others may use the machine
        for name, options in peers.items():
            mb_s[name].append(fio_mb_s(options, file, block))
        # In turns: what lies below a virtual disk may have a cache, which the first one fills.
        for name in (names[0], names[1], names[2]) if seed % 2 else (names[1], names[2], names[0]):
            if name != "fastio, cached":
                drop(shards)
            speed, cost = epoch_mb_s(packed, seed, name == "fastio, direct")
            mb_s[name].append(speed)
            costs[name].append(cost)
    table = new_table(f"random reads of {block // 1024} KiB", "MB/s", "of all rounds", "CPU s/GB")
    for name, each in mb_s.items():
        processor = f"{statistics.median(costs[name]):.2f}" if name in costs else ""
        all_of_it = " ".join(f"{speed:.0f}" for speed in each)
        table.add_row(name, f"{statistics.median(each):.0f}", all_of_it, processor)
    for name in peers:
        for own in names[:2]:
            ratios = [a / b for a, b in zip(mb_s[own], mb_s[name], strict=True)]
            table.add_row(f"{own} / {name}", f"{statistics.median(ratios):.2f}")
    console().print(table)
    return {"block": block, "mb_s": mb_s, "cpu_s_gb": costs}


# --- folder ---------------------------------------------------------------------------------------


def folder_part(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """A folder of JPEGs that is not in the page cache: fastio, and DataLoader with two workers."""
    source, folder = work / "made", work / "photos"
    make_images(source, count=min(200, arguments.files), classes=4, seed=0)
    photos = sorted(source.glob("*/*.jpg"))
    for index in range(arguments.files):
        photo = photos[index % len(photos)]
        copy = folder / photo.parent.name / f"{index:06}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photo, copy)
    files = sorted(folder.glob("*/*.jpg"))
    kinds = {"fastio": fastio_epoch_s, "DataLoader, 2 workers": torch_epoch_s}
    try:
        plain_torchvision.load()
    except ImportError:
        print("torchvision is not installed: no comparison", file=sys.stderr)
        del kinds["DataLoader, 2 workers"]
    seconds: dict[str, list[float]] = {f"{name}, {how}": [] for how in HOW for name in kinds}
    for round_ in range(arguments.rounds):
        for name, epoch_s in kinds.items():
            for how in HOW:
                if how == "cold":
                    drop(files)
                seconds[f"{name}, {how}"].append(epoch_s(folder, round_))
    table = new_table(f"a folder of {len(files)} JPEGs", "images/s", "of all rounds")
    for name, each in seconds.items():
        speeds = [len(files) / second for second in each]
        all_of_it = " ".join(f"{speed:.0f}" for speed in speeds)
        table.add_row(name, f"{statistics.median(speeds):.0f}", all_of_it)
    console().print(table)
    return seconds


HOW = ("cold", "cached")


def fastio_epoch_s(folder: Path, seed: int) -> float:
    """Seconds of a shuffled epoch of centre crops with two threads."""
    begin = time.perf_counter()
    with fastio.Loader(
        folder,
        batch_size=64,
        shuffle=True,
        seed=seed,
        num_workers=2,
        transforms=[CenterCrop(64)],
    ) as loader:
        for _ in loader:
            pass
    return time.perf_counter() - begin


def torch_epoch_s(folder: Path, seed: int) -> float:
    """The same with ImageFolder and DataLoader."""
    import torch

    torchvision = plain_torchvision.load()
    v1 = torchvision.transforms
    steps = v1.Compose([v1.CenterCrop(64), v1.PILToTensor()])
    dataset = torchvision.datasets.ImageFolder(str(folder), steps)
    begin = time.perf_counter()
    for _ in torch.utils.data.DataLoader(dataset, 64, shuffle=True, num_workers=2):
        pass
    return time.perf_counter() - begin


# --- The command line -----------------------------------------------------------------------------

PARTS: dict[str, Part] = {
    "order": order_part,
    "cold": cold_part,
    "folder": folder_part,
    "http": http_part,
    "latency": latency_part,
    "budget": budget_part,
}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    found.add_argument("--json", type=Path, help="write all figures there")
    found.add_argument("--folder", type=Path, help="on the disk to measure (the temporary folder)")
    found.add_argument("--rounds", type=int, default=5, help="of each measurement (5)")
    found.add_argument("--rows", type=int, default=16_000, help="of the cold dataset (16000: 2 GB)")
    found.add_argument("--files", type=int, default=4_000, help="of the folder (4000)")
    found.add_argument(
        "--megabytes", type=int, help="of remote data (http 1500, latency 3000, budget 1000)"
    )
    return found


def main() -> None:
    arguments = parser().parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    console().print(machine_line())
    result: dict[str, Any] = {"machine": machine()}
    for name in arguments.parts or PARTS:
        work = Path(tempfile.mkdtemp(prefix="fastio-access-", dir=arguments.folder))
        try:
            result[name] = PARTS[name](arguments, work)
        finally:
            shutil.rmtree(work)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
