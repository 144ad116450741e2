"""Compares fastio.Loader, DataLoader and plain indexing on data in memory, in samples per second.

    .venv/bin/python benchmarks/in_memory.py [--rows 50000] [--rounds 5] [--json FILE]

- images: a torchvision CIFAR10 of random pixels with the usual transforms (padded crop, flip,
  ToTensor, Normalize), in batches of 512, shuffled. DataLoader uses two workers, fastio one thread
  or two.
- table: a TensorDataset of 40 columns, as one tensor (rows, 40) of float32, or as 40 tensors
  (rows,). It is compared with a DataLoader without workers (which is faster here than one with
  workers), and with indexing the tensors by hand, `x[permutation[i : i + batch]]`.
- small: the same table in batches of 16.

A round runs each loader once; the table has medians of rounds. Nothing else should run on the
machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import console, let_others_end, machine, machine_line, new_table, write_json
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import fastio

import plain_torchvision  # isort: skip

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)
COLUMNS = 40
BATCH = 512
SMALL = 16

Loaders = dict[str, Callable[[], Iterable[Any]]]


def cifar(rows: int) -> Any:
    """Returns a CIFAR10 of random pixels, with the transforms of most recipes."""
    torchvision = plain_torchvision.load()
    transforms = torchvision.transforms
    dataset = torchvision.datasets.CIFAR10.__new__(torchvision.datasets.CIFAR10)
    random = np.random.default_rng(0)
    dataset.data = random.integers(0, 256, (rows, 32, 32, 3), np.uint8)
    dataset.targets = random.integers(0, 10, rows).tolist()
    dataset.target_transform = None
    dataset.transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return dataset


def images(rows: int) -> Loaders:
    dataset = cifar(rows)
    workers: Any = DataLoader(dataset, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    found: Loaders = {"DataLoader, 2 workers": lambda: workers}
    for threads in (1, 2):
        loader = fastio.Loader(dataset, BATCH, shuffle=True, num_workers=threads)
        assert loader.path == "native"
        found[f"fastio, {threads} thread{'s' * (threads > 1)}"] = partial(_itself, loader)
    return found


def _itself(loader: fastio.Loader) -> fastio.Loader:
    return loader


def by_hand(tensors: tuple[torch.Tensor, ...], batch: int) -> Iterator[Any]:
    order = torch.randperm(len(tensors[0]))
    for begin in range(0, len(order), batch):
        rows = order[begin : begin + batch]
        yield tuple(tensor[rows] for tensor in tensors)


def table(rows: int, batch: int, several: bool) -> Loaders:
    values = torch.randn(rows, COLUMNS)
    labels = torch.randint(0, 2, (rows,))
    columns = tuple(column.contiguous() for column in values.T) if several else (values,)
    dataset = TensorDataset(*columns, labels)
    found: Loaders = {
        "DataLoader": lambda: DataLoader(dataset, batch, shuffle=True),
        "DataLoader, BatchSampler": lambda: DataLoader(
            dataset, None, sampler=BatchSampler(RandomSampler(dataset), batch, False)
        ),
        "by hand": lambda: by_hand(dataset.tensors, batch),
    }
    for threads in (1, 2):
        loader = fastio.Loader(dataset, batch, shuffle=True, num_workers=threads)
        found[f"fastio, {threads} thread{'s' * (threads > 1)}"] = partial(_itself, loader)
    return found


def epoch(batches: Iterable[Any], most_s: float) -> float:
    """Returns the samples per second of one epoch, which ends early after `most_s` seconds."""
    let_others_end()
    samples, began = 0, time.perf_counter()
    for batch in batches:
        samples += len(batch[0])
        if time.perf_counter() - began > most_s:
            break
    return samples / (time.perf_counter() - began)


def measure(loaders: Loaders, rounds: int, most_s: float) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(rounds + 1):
        for name, make in loaders.items():
            rate = epoch(make(), most_s)
            if turn:
                rates[name].append(rate)
    return {name: statistics.median(found) for name, found in rates.items()}


def report(result: dict[str, Any]) -> None:
    out = console()
    out.print(machine_line())
    for title, rates in result["rates"].items():
        found = new_table(title, "samples/s", "of DataLoader", "of hand indexing")
        first = next(iter(rates.values()))
        for name, rate in rates.items():
            hand = f"{rate / rates['by hand']:.2f}" if "by hand" in rates else "-"
            found.add_row(name, f"{rate:,.0f}", f"{rate / first:.1f}", hand)
        out.print(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000, help="rows (50,000)")
    parser.add_argument("--table-rows", type=int, default=1_000_000, help="rows of tables (1M)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--most-s", type=float, default=5.0, help="longest epoch in seconds (5)")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    cases: dict[str, Callable[[], Loaders]] = {
        "images 32 x 32, batches of 512": lambda: images(arguments.rows),
        "40 columns, one tensor, 4096": lambda: table(arguments.table_rows, 4096, False),
        "40 columns, 40 tensors, 4096": lambda: table(arguments.table_rows, 4096, True),
        "40 columns, one tensor, 16": lambda: table(arguments.table_rows, SMALL, False),
    }
    rates = {
        title: measure(make(), arguments.rounds, arguments.most_s) for title, make in cases.items()
    }
    result = {"machine": machine(), "rates": rates}
    report(result)
    write_json(arguments.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
