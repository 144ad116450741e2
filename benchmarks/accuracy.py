"""Does a network learn the same from blocks as from Pillow's crops? Accuracies over several seeds.

    .venv/bin/python benchmarks/accuracy.py [--count 3600] [--epochs 3] [--seeds 3] [--json FILE]

The small network of tools/demo is trained on made photos (tools/make_images) from the same initial
weights, RandomResizedCrop(128) and flip: with torch's DataLoader and Pillow, and with fastio from
the photos packed as blocks; with each for several seeds, which decide order and crops. Each network
is evaluated on other photos, twice: on the pixels that its own loader gives, and on the other's.

What to look at: the difference of the mean accuracies against what chance alone makes of it, half
the width of the 95% interval of a difference of two means (Student's t, pooled variance). A few
seeds cannot show a small difference; they show that there is no large one.

The photos take a minute to make. --work names a folder where they are kept, packed too; those of
tools/demo, in build/demo, are the same.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import console, machine, machine_line, new_table, temporary_folder, write_json
from make_images import make_images
from rich.table import Table
from side_by_side import (
    BATCH,
    CLASSES,
    Settings,
    evaluate,
    fast_loader,
    network,
    plain_loader,
    train,
)

import fastio

PILLOW, BLOCKS = "Pillow", "blocks"
# Student's t, 97.5%, by degrees of freedom: twice the seeds less two.
STUDENT_T = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 12: 2.179, 14: 2.145, 18: 2.101}


def nothing(_: int) -> None:
    """No progress is shown."""


@contextmanager
def loader(settings: Settings, kind: str, part: str, seed: int = 0) -> Iterator[Any]:
    """One way to load a part, "train" or "val"."""
    if kind == PILLOW:
        torch.manual_seed(seed)  # DataLoader's order and its workers' crops come from it
        yield plain_loader(settings, part)
        return
    with fast_loader(settings, settings.packed, part, seed) as fast:
        yield fast


def prepare(settings: Settings) -> None:
    """Makes the photos that are not there yet, and packs them."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate(settings.parts.items()):
        if not (settings.folder / part).is_dir():
            make_images(settings.folder / part, count, CLASSES, seed)
        fastio.pack(settings.folder / part, settings.packed / part, codec="blocks", overwrite=True)


def accuracies(settings: Settings, kind: str, seed: int) -> dict[str, float]:
    """What one network reaches on the evaluation photos as either way loads them, 0 to 1."""
    model = network(settings.device)
    with loader(settings, kind, "train", seed) as training:
        *_, mean = train(model, training, settings, nothing)
    found = {}
    for other in (PILLOW, BLOCKS):
        with loader(settings, other, "val") as val:
            found[other] = evaluate(mean, val, settings.device, nothing)
    return found


def noise(a: list[float], b: list[float]) -> float:
    """Half the width of the 95% interval of the difference of two means of equal counts."""
    freedom = 2 * len(a) - 2
    t = STUDENT_T[max(known for known in STUDENT_T if known <= freedom)]
    pooled = (statistics.variance(a) + statistics.variance(b)) / 2
    return t * math.sqrt(2 * pooled / len(a))


def table(found: dict[str, list[dict[str, float]]]) -> Table:
    seeds = range(len(found[PILLOW]))
    out = new_table(
        "trained on", "evaluated on", *(f"seed {seed}" for seed in seeds), "mean", "spread"
    )
    for kind, runs in found.items():
        for other in (PILLOW, BLOCKS):
            values = [run[other] for run in runs]
            cells = (f"{value:.2%}" for value in values)
            spread = f"{100 * statistics.stdev(values):.2f}"
            out.add_row(kind, other, *cells, f"{statistics.mean(values):.2%}", spread)
    return out


def verdict(own: dict[str, list[float]]) -> str:
    difference = 100 * (statistics.mean(own[BLOCKS]) - statistics.mean(own[PILLOW]))
    chance = 100 * noise(own[BLOCKS], own[PILLOW])
    within = "within" if abs(difference) <= chance else "NOT within"
    return (
        f"blocks against Pillow, each evaluated on its own pixels: {difference:+.2f} points; "
        f"chance alone makes up to {chance:.2f} (95%): {within} it"
    )


def measured(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the other cores are the loaders'
    settings = Settings(
        arguments.count,
        arguments.epochs,
        arguments.size,
        work,
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        len(os.sched_getaffinity(0)),
    )
    prepare(settings)
    found: dict[str, list[dict[str, float]]] = {PILLOW: [], BLOCKS: []}
    for seed in range(arguments.seeds):
        for kind, runs in found.items():
            runs.append(accuracies(settings, kind, seed))
    own = {kind: [run[kind] for run in runs] for kind, runs in found.items()}
    return {
        "machine": machine(),
        "photos": settings.parts,
        "epochs": arguments.epochs,
        "size": arguments.size,
        "accuracies": found,
        "difference_points": 100 * (statistics.mean(own[BLOCKS]) - statistics.mean(own[PILLOW])),
        "chance_points": 100 * noise(own[BLOCKS], own[PILLOW]),
        "verdict": verdict(own),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3600, help="photos to train with (3600)")
    parser.add_argument("--epochs", type=int, default=3, help="of each training (3)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings with each loader (3)")
    parser.add_argument("--size", type=int, default=128, help="of crops, in pixels (128)")
    parser.add_argument("--work", type=Path, help="where to keep the photos, or find them")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    if arguments.count < 2 * BATCH or arguments.seeds < 2:
        parser.error(f"--count is at least {2 * BATCH}, --seeds 2")
    with temporary_folder() as work:
        result = measured(arguments, arguments.work or work)
    photos = result["photos"]
    console().print(
        f"{photos['train']:,} photos to train with, {photos['val']:,} to evaluate with, "
        f"{CLASSES} classes, {result['epochs']} epochs; {machine_line()}",
        table(result["accuracies"]),
        result["verdict"],
        sep="\n",
    )
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
