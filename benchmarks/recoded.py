"""Recoded images in a cache: what recoding costs in the first epoch and gains in later ones.

    .venv/bin/python benchmarks/recoded.py [FOLDER] [--count 4000] [--rounds 3] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. All loaders deliver the
same: RandomResizedCrop(224) and RandomHorizontalFlip to uint8 batches of 64, of `--count` rows that
are copies of the photos (no two with the same bytes), with warm page cache and one thread for each
processor.

First epoch. Batches are requested without a pause, so that the loader's threads leave no processor
idle: once without a cache and once with an empty cache, in turns. Recoding then uses 5% of the
threads' time, and writes its results to the disk.

Later epochs. All images are recoded. In turns: an epoch that reads the records, one of the dataset
that fastio.pack makes of the folder, and one of the folder without a cache.

Recoding. Images recoded per second while nothing else runs, until all are recoded.

Pixels. How much crops of records differ from crops of the files, with the same random draws.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import (
    about_photos,
    console,
    copied,
    empty_cache_home,
    machine,
    machine_line,
    new_table,
    photo_parser,
    source_photos,
    temporary_folder,
    write_json,
)

import fastio

SIZE = 224
BATCH = 64
CROPS = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]


def made(source: Path, threads: int, cache: Path | None = None) -> fastio.Loader[Any]:
    return fastio.Loader(
        source,
        BATCH,
        shuffle=True,
        seed=0,
        num_workers=threads,
        cache=cache,
        transforms={"image": CROPS},
    )


def rate(loader: fastio.Loader[Any]) -> float:
    """Returns the images per second of an epoch."""
    start = time.perf_counter()
    images = sum(len(images) for images, _ in loader)
    return images / (time.perf_counter() - start)


def first_epoch(folder: Path, cache: Path | None, threads: int) -> float:
    """Returns the images per second of a loader's first epoch."""
    if cache is not None:
        shutil.rmtree(cache, ignore_errors=True)
    with empty_cache_home(), made(folder, threads, cache) as loader:
        return rate(loader)


def recode(folder: Path, cache: Path, threads: int, count: int) -> float:
    """Recodes all images; returns the images recoded per second after the first epoch."""
    shutil.rmtree(cache, ignore_errors=True)
    with made(folder, threads, cache) as loader:
        start = time.perf_counter()
        for _ in loader:  # an epoch requests all blocks
            pass
        before, began = loader.stats().recoded, time.perf_counter()
        while loader.stats().recoded < count:
            if time.perf_counter() - start > 600:
                raise SystemExit("not all images were recoded: are all of them JPEG files?")
            time.sleep(0.05)
        return (count - before) / max(1e-9, time.perf_counter() - began)


def in_turns(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs each function once per round and returns all results."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def differences(folder: Path, cache: Path, threads: int) -> dict[str, float]:
    """Returns how much the pixels of an epoch differ, in levels of 255."""
    most, total, count, far = 0, 0.0, 0, 0
    with made(folder, threads) as plain, made(folder, threads, cache) as recoded:
        for (a, _), (b, _) in zip(plain, recoded, strict=True):
            difference = (a.to(torch.int16) - b).abs()
            most = max(most, int(difference.max()))
            total += float(difference.float().sum())
            far += int((difference > 3).sum())
            count += difference.numel()
    return {"mean": total / count, "most": most, "above_3": far / count}


def measure(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    files = source_photos(arguments, work)
    folder = copied(files, arguments.count, work / "photos")
    packed, cache, threads = work / "packed", work / "cache", arguments.threads
    fastio.pack(folder, packed)
    first_epoch(folder, None, threads)  # warms the page cache
    first = in_turns(
        {
            "without a cache": lambda: first_epoch(folder, None, threads),
            "with an empty cache": lambda: first_epoch(folder, cache, threads),
        },
        arguments.rounds,
    )
    recoding = recode(folder, cache, threads, arguments.count)
    with (
        made(folder, threads) as plain,
        made(packed, threads) as packs,
        made(folder, threads, cache) as recoded,
    ):
        ways = {"folder": plain, "packed": packs, "recoded": recoded}
        for loader in ways.values():
            rate(loader)
        later = in_turns(
            {name: partial(rate, loader) for name, loader in ways.items()}, 2 * arguments.rounds
        )
    return {
        "machine": machine(),
        "photos": about_photos(files, arguments.held_out),
        "images": arguments.count,
        "threads": threads,
        "first_epoch": first,
        "recoded_per_s": recoding,
        "later_epochs": later,
        "pixels": differences(folder, cache, threads),
    }


def report(result: dict[str, Any]) -> None:
    out = console()
    out.print(f"{result['images']} rows of {result['photos']}; {machine_line()}")
    for title, base in (("first_epoch", "without a cache"), ("later_epochs", "packed")):
        rates = {name: statistics.median(all_) for name, all_ in result[title].items()}
        table = new_table(title.replace("_", " "), "images/s (median)", f"of {base}")
        for name, value in rates.items():
            table.add_row(name, f"{value:,.0f}", f"{value / rates[base]:.3f}")
        out.print(table)
    pixels = result["pixels"]
    out.print(
        f"recoding, nothing else running: {result['recoded_per_s']:,.0f} images/s; pixels differ "
        f"by {pixels['mean']:.2f} levels on average, at most {pixels['most']}; by more than 3: "
        f"{pixels['above_3']:.2%}"
    )


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument(
        "--count", type=int, default=4000, help="number of rows, the photos repeated (4000)"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of epochs (3)")
    arguments = parser.parse_args()
    with temporary_folder() as work:
        result = measure(arguments, work)
    report(result)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
