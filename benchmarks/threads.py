"""Loader(threads="auto") against fixed numbers of threads: samples a second that the caller gets.

    python benchmarks/threads.py PHOTOS --load decode --seconds 20

Each number of threads is measured in turn, several times; "auto" runs for as long as all turns of
one number together, its search included.

- decode: the caller does nothing but ask for batches of JPEGs
- training: a small network is trained on the CPU, on crops of the same photos packed as blocks
- mixed: likewise, on the JPEGs as they are, which take about as long to decode as to train on
- sleep: the caller sleeps as long as an accelerator would compute
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import fastio

_BATCH = 64
_CROP = 128
_SLEEP_S = 0.08


class Again:
    """The rows [0, rows) in random orders, for ever as far as any run goes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[int]:
        draws = np.random.default_rng(0)
        for _ in range(len(self) // self._rows):
            yield from draws.permutation(self._rows).tolist()

    def __len__(self) -> int:
        return self._rows * 100_000


def nothing() -> Callable[[torch.Tensor], None]:
    """A caller that only asks for batches."""
    return lambda images: None


def sleeping() -> Callable[[torch.Tensor], None]:
    """A caller whose accelerator computes, and whose processor does not."""
    return lambda images: time.sleep(_SLEEP_S)


def training() -> Callable[[torch.Tensor], None]:
    """A caller that trains a small network on the CPU."""
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(images: torch.Tensor) -> None:
        loss = model(images.float().div_(255)).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def run(
    loader: fastio.Loader, step: Callable[[torch.Tensor], None], seconds: float
) -> tuple[float, Counter[int]]:
    """Samples a second, and how many batches came with which number of threads."""
    batches = iter(loader)
    for _ in range(4):
        step(next(batches)[0])
    before, seen = loader.stats(), Counter[int]()
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        step(next(batches)[0])
        seen[loader.stats().threads] += 1
    took_s = time.perf_counter() - began_s
    batches.close()
    return (loader.stats() - before).samples / took_s, seen


def main() -> None:
    """Measures one load and prints a line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of class folders")
    parser.add_argument("--load", choices=["decode", "training", "mixed", "sleep"], required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of threads")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args()
    steps = {"decode": nothing, "sleep": sleeping, "training": training, "mixed": training}
    step = steps[args.load]()
    with tempfile.TemporaryDirectory() as folder:
        codec: Literal["blocks", "jpeg"] = "blocks" if args.load == "training" else "jpeg"
        rows = fastio.pack(args.photos, Path(folder, "packed"), codec=codec).rows

        def loader(threads: int | Literal["auto"]) -> fastio.Loader:
            return fastio.Loader(
                Path(folder, "packed"),
                _BATCH,
                sampler=Again(rows),
                fields=["image"],
                transforms=[fastio.RandomResizedCrop(_CROP), fastio.RandomHorizontalFlip()],
                threads=threads,
            )

        rates: dict[int, list[float]] = {threads: [] for threads in args.threads}
        for _, threads in itertools.product(range(args.turns), args.threads):
            with loader(threads) as fixed:
                rates[threads].append(run(fixed, step, args.seconds / args.turns)[0])
        with loader("auto") as tuned:
            rate, seen = run(tuned, step, 2 * args.seconds)
            later, seen_later = run(tuned, step, args.seconds / 2)
    best = max(float(np.mean(found)) for found in rates.values())
    for threads, found in rates.items():
        mean = float(np.mean(found))
        print(f"{threads} threads: {mean:,.0f}/s ({min(found):,.0f} .. {max(found):,.0f})")
    print(f"auto: {rate:,.0f}/s, {rate / best:.3f} of the best, search included: {dict(seen)}")
    print(f"auto, later: {later:,.0f}/s, {later / best:.3f} of the best: {dict(seen_later)}")


if __name__ == "__main__":
    main()
