"""Does a network learn the same from fastio's crops as from Pillow's? Losses and accuracies.

    .venv/bin/python benchmarks/accuracy.py [--count 3600] [--epochs 3] [--seeds 3] [--json FILE]

The small network of tools/demo is trained on made photos (tools/make_images) from the same initial
weights, RandomResizedCrop(128) and flip: with torch's DataLoader and Pillow, with fastio from the
folder, and with fastio from the photos packed as blocks; with each for several seeds, which decide
order and crops. Each network is evaluated on other photos, on the pixels that its own loader gives
and on Pillow's.

What to look at: the difference of the means (the last epoch's training loss, the accuracy) against
what chance alone makes of it, half the width of the 95% interval of a difference of two means
(Student's t, pooled variance). A few seeds cannot show a small difference; they show that there is
no large one.

The photos take a minute to make. --work names a folder where they are kept, packed too; those of
tools/demo, in build/demo, are the ones of --count 800.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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

PILLOW, FOLDER, BLOCKS = "Pillow", "folder", "blocks"
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
    folder = settings.packed if kind == BLOCKS else settings.folder
    with fast_loader(settings, folder, part, seed) as fast:
        yield fast


def prepare(settings: Settings) -> None:
    """Makes the photos that are not there yet, and packs them."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate(settings.parts.items()):
        if not (settings.folder / part).is_dir():
            make_images(settings.folder / part, count, CLASSES, seed)
        fastio.pack(settings.folder / part, settings.packed / part, codec="blocks", overwrite=True)


@dataclass(frozen=True)
class Run:
    """What one training reached.

    Attributes:
        loss: the mean of the last epoch's training losses.
        accuracies: of the evaluation photos, 0 to 1, by the way that these were loaded.
    """

    loss: float
    accuracies: dict[str, float]


def run(settings: Settings, kind: str, seed: int) -> Run:
    """Trains a network with one way to load, and evaluates it."""
    with loader(settings, kind, "train", seed) as training:
        trained = train(network(settings.device), training, settings, nothing)
    found = {}
    for other in dict.fromkeys((kind, PILLOW)):
        with loader(settings, other, "val") as val:
            found[other] = evaluate(trained.mean, val, settings.device, nothing)
    return Run(trained.loss, found)


def noise(a: list[float], b: list[float]) -> float:
    """Half the width of the 95% interval of the difference of two means of equal counts."""
    freedom = 2 * len(a) - 2
    t = STUDENT_T[max(known for known in STUDENT_T if known <= freedom)]
    pooled = (statistics.variance(a) + statistics.variance(b)) / 2
    return t * math.sqrt(2 * pooled / len(a))


def table(found: dict[str, list[Run]]) -> Table:
    """Mean, its standard error, the least and the most of each figure."""
    out = new_table("trained on", "figure", "mean", "standard error", "least", "most")
    for kind, runs in found.items():
        losses = [one.loss for one in runs]
        figures = (f"{value:.4f}" for value in (*summary(losses), min(losses), max(losses)))
        out.add_row(kind, "loss of the last epoch", *figures)
        for other in runs[0].accuracies:
            values = [100 * one.accuracies[other] for one in runs]
            figures = (f"{value:.2f}%" for value in (*summary(values), min(values), max(values)))
            out.add_row(kind, f"accuracy on {other}", *figures)
    return out


def summary(values: list[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def verdict(name: str, unit: str, a: list[float], b: list[float]) -> str:
    """Whether the difference of two means is more than chance makes it."""
    difference, chance = statistics.mean(a) - statistics.mean(b), noise(a, b)
    within = "within" if abs(difference) <= chance else "NOT within"
    return (
        f"{name} against Pillow: {difference:+.3f}{unit}; chance alone makes up to "
        f"{chance:.3f} (95%): {within} it"
    )


def verdicts(found: dict[str, list[Run]]) -> list[str]:
    """Of each way of fastio, each network being evaluated on its own pixels."""
    out = []
    for kind in (FOLDER, BLOCKS):
        of = {one: [run.loss for run in found[one]] for one in (kind, PILLOW)}
        out.append(verdict(f"{kind}, loss", "", of[kind], of[PILLOW]))
        of = {one: [100 * run.accuracies[one] for run in found[one]] for one in (kind, PILLOW)}
        out.append(verdict(f"{kind}, accuracy", " points", of[kind], of[PILLOW]))
    return out


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
    found: dict[str, list[Run]] = {PILLOW: [], FOLDER: [], BLOCKS: []}
    for seed in range(arguments.seeds):
        for kind, runs in found.items():
            runs.append(run(settings, kind, seed))
    return {
        "machine": machine(),
        "photos": settings.parts,
        "epochs": arguments.epochs,
        "size": arguments.size,
        "runs": found,
        "verdicts": verdicts(found),
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
        table(result["runs"]),
        *result["verdicts"],
        sep="\n",
    )
    runs = {kind: [asdict(run) for run in runs] for kind, runs in result["runs"].items()}
    write_json(arguments.json, {**result, "runs": runs})


if __name__ == "__main__":
    main()
