"""Loader(num_workers="auto") against fixed numbers of threads: samples per second.

    python benchmarks/threads.py PHOTOS --load decode

Each number of threads and "auto" are measured by turns, so that a machine that drifts does so for
all of them. The loader of "auto" is the same in all turns: its first ones have the search in them.

- decode: the caller does nothing but ask for batches of JPEGs
- training: a small network is trained on the CPU, on crops of the same photos packed as blocks
- mixed: likewise, on the JPEGs as they are, which take about as long to decode as to train on
- sleep: the caller sleeps as long as an accelerator would compute
- small: raw images of 32 x 32 pixels, made here, which take a microsecond each, in batches of 4,096
  and of 16 with 2 and 64 threads: what it costs to share work. No photos are needed

    python benchmarks/threads.py --load small
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

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


def endless(loader: fastio.Loader) -> Generator[Any, None, None]:
    """Yields the batches of one epoch after another, without end."""
    while True:
        yield from loader


def run(
    loader: fastio.Loader, step: Callable[[torch.Tensor], None], seconds: float
) -> tuple[float, Counter[int]]:
    """Samples a second, and how many batches came with which number of threads."""
    batches = endless(loader)
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


def rate(loader: fastio.Loader, seconds: float) -> float:
    """Returns the samples per second of batches that are not used."""
    batches = endless(loader)
    next(batches)
    samples, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        samples += len(next(batches)["image"])
    took_s = time.perf_counter() - began_s
    batches.close()
    return samples / took_s


class Noise:
    """A dataset of images of random pixels, uint8 (32, 32, 3)."""

    def __len__(self) -> int:
        return 65_536

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"image": np.random.default_rng(row).integers(0, 256, (32, 32, 3), np.uint8)}


def small(turns: int, seconds: float) -> None:
    """Measures small raw images and prints a line for each setting."""
    with tempfile.TemporaryDirectory() as folder:
        fastio.pack(Noise(), Path(folder, "packed"), codec="raw")
        settings = [(threads, batch) for threads in (2, 64) for batch in (4096, 16)]
        rates: dict[tuple[int, int], list[float]] = {one: [] for one in settings}
        for _, (threads, batch) in itertools.product(range(turns), settings):
            with fastio.Loader(
                Path(folder, "packed"),
                batch,
                shuffle=True,
                transforms=[fastio.CenterCrop(32)],
                num_workers=threads,
            ) as loader:
                rates[threads, batch].append(rate(loader, seconds))
    for (threads, batch), found in rates.items():
        each = " ".join(f"{rate:,.0f}" for rate in found)
        print(f"{threads} threads, batches of {batch}: {np.median(found):,.0f} images/s ({each})")


def main() -> None:
    """Measures one load and prints a line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", nargs="?", help="a folder of class folders")
    loads = ["decode", "training", "mixed", "sleep", "small"]
    parser.add_argument("--load", choices=loads, required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--settle", type=int, default=2, help="turns that do not count")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args()
    if args.load == "small":
        small(args.turns, args.seconds)
        return
    if args.photos is None:
        parser.error("this load needs a folder of photos")
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
