"""Compares losses and accuracies of networks that learn from fastio's images and from Pillow's.

    .venv/bin/python benchmarks/accuracy.py [--count 3600] [--epochs 3] [--seeds 3] [--json FILE]
    .venv/bin/python benchmarks/accuracy.py --recipes all --count 800 --epochs 24 --size 112

The small network of tools/demo is trained on made photos (tools/make_images) from the same initial
weights, RandomResizedCrop(128) and flip: with torch's DataLoader and Pillow, with fastio from the
folder, and with fastio from the photos packed as blocks; with each for several seeds, which decide
order and crops. Each network is evaluated on other photos, on the pixels that its own loader gives
and on Pillow's.

With --recipes, the network is trained with whole recipes of augmentation: once with fastio's
transforms on blocks, and once with the same transforms of torchvision v2 in a DataLoader, which
decodes with Pillow and has torchvision's Mixup and CutMix in its collate_fn, as torchvision's
documentation describes.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import console, machine, machine_line, new_table, temporary_folder, write_json
from make_images import make_images
from recipes import jitter, three
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
from torch.utils.data import DataLoader, default_collate

import fastio
from fastio.train.kinds import MEAN, STD

import plain_torchvision  # isort: skip

PILLOW, FOLDER, BLOCKS, TORCHVISION = "Pillow", "folder", "blocks", "torchvision"
PLAIN = "plain"  # no recipe: crops and flips
# Student's t, 97.5%, by degrees of freedom: twice the seeds less two.
STUDENT_T = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 12: 2.179, 14: 2.145, 18: 2.101}


@dataclass(frozen=True)
class Recipe:
    """A recipe of augmentation: the steps after RandomResizedCrop and RandomHorizontalFlip.

    Attributes:
        pixels: (torchvision.transforms.v2 or fastio, size) -> the steps before Normalize.
        erasing: probability of RandomErasing after Normalize.
        mixed: parameters of Mixup and CutMix, of which each batch uses one; None for neither.
    """

    pixels: Callable[[Any, int], list[Any]]
    erasing: float = 0.0
    mixed: tuple[float, float] | None = None


RECIPES = {
    "trivial": Recipe(lambda v, size: [v.TrivialAugmentWide()], erasing=0.1),
    "simclr": Recipe(jitter),
    "three": Recipe(lambda v, size: three(v), mixed=(0.8, 1.0)),
}
SAID = {
    "trivial": "TrivialAugmentWide, RandomErasing(0.1)",
    "simclr": "colours, gray and blur of SimCLR",
    "three": "three-augment, ColorJitter(0.3), Mixup(0.8) or CutMix(1.0)",
}


def nothing(_: int) -> None:
    """No progress is shown."""


class Mixed:
    """Collates a batch and mixes its samples."""

    def __init__(self, mix: Callable[..., Any]) -> None:
        self._mix = mix

    def __call__(self, samples: list[Any]) -> Any:
        return self._mix(*default_collate(samples))


def torchvision_loader(settings: Settings, recipe: Recipe) -> DataLoader[Any]:
    """Returns a DataLoader of the training photos with a recipe of torchvision's transforms."""
    vision = plain_torchvision.load()
    v2 = vision.transforms.v2
    steps = [v2.ToImage(), v2.RandomResizedCrop(settings.size), v2.RandomHorizontalFlip()]
    steps += recipe.pixels(v2, settings.size)
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if recipe.erasing:
        steps.append(v2.RandomErasing(recipe.erasing))
    collate = None
    if recipe.mixed is not None:
        mixup, cutmix = recipe.mixed
        parts = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
        both = [kind(alpha=alpha, num_classes=CLASSES) for kind, alpha in parts]
        collate = Mixed(v2.RandomChoice(both))
    return DataLoader(
        vision.datasets.ImageFolder(settings.folder / "train", v2.Compose(steps)),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=settings.cores,
        persistent_workers=True,
        collate_fn=collate,
    )


def recipe_loader(settings: Settings, recipe: Recipe, seed: int) -> fastio.Loader:
    """Returns a Loader of the packed training photos with a recipe of fastio's transforms."""
    steps = [fastio.RandomResizedCrop(settings.size), fastio.RandomHorizontalFlip()]
    steps += [*recipe.pixels(fastio, settings.size), fastio.Normalize(MEAN, STD)]
    if recipe.erasing:
        steps.append(fastio.RandomErasing(recipe.erasing))
    mixed = []
    if recipe.mixed is not None:
        mixup, cutmix = recipe.mixed
        mixed = [fastio.RandomChoice([fastio.Mixup(mixup), fastio.CutMix(cutmix)])]
    return fastio.Loader(
        settings.packed / "train",
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=settings.cores,
        device=settings.device,
        transforms={"image": steps, None: mixed},
        seed=seed,
        channels_last=True,  # as the network's weights
    )


@contextmanager
def loader(
    settings: Settings, kind: str, part: str, seed: int = 0, recipe: Recipe | None = None
) -> Iterator[Any]:
    """Yields a loader of one kind for a part, "train" or "val"; recipes apply to training only."""
    if recipe is not None and part == "train":
        if kind == TORCHVISION:
            torch.manual_seed(seed)
            yield torchvision_loader(settings, recipe)
            return
        with recipe_loader(settings, recipe, seed) as fast:
            yield fast
        return
    if kind in (PILLOW, TORCHVISION):
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


def run(settings: Settings, kind: str, seed: int, recipe: Recipe | None = None) -> Run:
    """Trains a network with one way to load, and evaluates it."""
    with loader(settings, kind, "train", seed, recipe) as training:
        trained = train(network(settings.device), training, settings, nothing)
    found = {}
    for other in (PILLOW,) if kind in (PILLOW, TORCHVISION) else (kind, PILLOW):
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


def recipe_table(found: dict[str, dict[str, list[Run]]]) -> Table:
    """Returns a table of each recipe; each network is evaluated on the pixels of its own loader."""
    out = new_table("recipe", "figure", TORCHVISION, "fastio", "difference", "chance, 95%", "")
    for name, runs in found.items():
        theirs, ours = runs[TORCHVISION], runs[BLOCKS]
        figures = {
            "loss": ([one.loss for one in theirs], [one.loss for one in ours]),
            "accuracy, %": (
                [100 * one.accuracies[PILLOW] for one in theirs],
                [100 * one.accuracies[BLOCKS] for one in ours],
            ),
        }
        for figure, (a, b) in figures.items():
            difference, chance = statistics.mean(b) - statistics.mean(a), noise(a, b)
            within = "within" if abs(difference) <= chance else "NOT within"
            means = [f"{statistics.mean(c):.3f} ± {statistics.stdev(c):.3f}" for c in (a, b)]
            out.add_row(name, figure, *means, f"{difference:+.3f}", f"{chance:.3f}", within)
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
    found: dict[str, dict[str, list[Run]]] = {
        name: {kind: [] for kind in (TORCHVISION, BLOCKS)} for name in arguments.recipes
    } or {PLAIN: {kind: [] for kind in (PILLOW, FOLDER, BLOCKS)}}
    for seed in range(arguments.seeds):
        for name, ways in found.items():
            for kind, runs in ways.items():
                runs.append(run(settings, kind, seed, RECIPES.get(name)))
    return {
        "machine": machine(),
        "photos": settings.parts,
        "epochs": arguments.epochs,
        "size": arguments.size,
        "runs": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3600, help="photos to train with (3600)")
    parser.add_argument("--epochs", type=int, default=3, help="of each training (3)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings with each loader (3)")
    parser.add_argument("--size", type=int, default=128, help="of crops, in pixels (128)")
    parser.add_argument(
        "--recipes",
        nargs="+",
        choices=[*RECIPES, "all"],
        default=[],
        help="recipes to train with (default: crops and flips only)",
    )
    parser.add_argument("--work", type=Path, help="where to keep the photos, or find them")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    if arguments.count < 2 * BATCH or arguments.seeds < 2:
        parser.error(f"--count is at least {2 * BATCH}, --seeds 2")
    if "all" in arguments.recipes:
        arguments.recipes = list(RECIPES)
    with temporary_folder() as work:
        result = measured(arguments, arguments.work or work)
    photos, found = result["photos"], result["runs"]
    shown: list[Any] = (
        [recipe_table(found), *(f"{name}: {SAID[name]}" for name in found)]
        if arguments.recipes
        else [table(found[PLAIN]), *verdicts(found[PLAIN])]
    )
    console().print(
        f"{photos['train']:,} photos to train with, {photos['val']:,} to evaluate with, "
        f"{CLASSES} classes, {result['epochs']} epochs; {machine_line()}",
        *shown,
        sep="\n",
    )
    runs = {
        name: {kind: [asdict(run) for run in runs] for kind, runs in ways.items()}
        for name, ways in found.items()
    }
    write_json(arguments.json, {**result, "runs": runs})


if __name__ == "__main__":
    main()
