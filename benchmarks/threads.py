"""Loader(num_workers="auto") against fixed numbers of threads: samples per second.

    python benchmarks/threads.py PHOTOS --load decode

Each number of threads and "auto" are measured by turns, so that a machine that drifts does so for
all of them. The loader of "auto" is the same in all turns: its first ones have the search in them.

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
from contextlib import ExitStack
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
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--settle", type=int, default=2, help="turns that do not count")
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
                num_workers=threads,
            )

        settings: list[int | Literal["auto"]] = [*args.threads, "auto"]
        rates: dict[int | Literal["auto"], list[float]] = {one: [] for one in settings}
        with ExitStack() as opened:
            loaders = {one: opened.enter_context(loader(one)) for one in settings}
            for turn, one in itertools.product(range(args.turns), settings):
                rate, seen = run(loaders[one], step, args.seconds)
                rates[one].append(rate)
                if one == "auto":
                    print(
                        f"turn {turn + 1}: {told(rates, turn)} ({told_threads(seen)})", flush=True
                    )
    settled = {one: float(np.mean(found[args.settle :])) for one, found in rates.items()}
    auto = settled.pop("auto")
    best = max(settled, key=lambda threads: settled[threads])
    print(f"auto, once settled: {auto / settled[best]:.3f} of the best fixed number ({best})")


def told(rates: dict[int | Literal["auto"], list[float]], turn: int) -> str:
    """The rates of a turn, one after the other."""
    return "  ".join(f"{one} {found[turn]:,.0f}/s" for one, found in rates.items())


def told_threads(seen: Counter[int]) -> str:
    """How many batches came with which number of threads."""
    return ", ".join(f"{batches} by {threads}" for threads, batches in seen.items())


if __name__ == "__main__":
    main()
