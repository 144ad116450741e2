"""Trains one small network on the same photos with DataLoader and Pillow, and with fastio.

    tools/demo

Photo-like JPEGs are made (once) and packed. Then the network is trained from the same initial
weights with torch's DataLoader and Pillow, with fastio from the same folder, and with fastio from
the packed dataset. Each training is repeated with other random crops, because the accuracy depends
on them.
A second table shows the folder with `cache=`, whose photos are recoded while its epochs run.
side_by_side.py has the loaders and the training.
"""

from __future__ import annotations

import argparse
import math
import platform
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import make_images
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from side_by_side import (
    BATCH,
    CLASSES,
    LOADING_EPOCHS,
    MOST_EPOCHS,
    RecodedEpoch,
    Report,
    Result,
    Settings,
    accuracy_again,
    contenders,
    measure,
    recoded_epochs,
)

import fastio
from fastio import _native
from fastio.diagnose.probes.machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
TRAININGS = 4  # with each loader
# The 97.5% quantile of Student's t distribution with 6 degrees of freedom, those of two means of
# TRAININGS.
STUDENT_T = 2.447

# --- Photos ---------------------------------------------------------------------------------------


def make_photos(settings: Settings, console: Console) -> str:
    """Makes the photos that do not exist yet; returns a line that describes the photos."""
    start = time.perf_counter()
    missing = {p: n for p, n in settings.parts.items() if not (settings.folder / p).is_dir()}
    settings.folder.mkdir(parents=True, exist_ok=True)
    if missing:
        with progress(console, "making photos", sum(missing.values())) as report:
            for part, count in missing.items():
                seed = list(settings.parts).index(part)
                make_images.make_images(
                    settings.folder / part, count, CLASSES, seed, progress=lambda _: report(1)
                )
    how = f"made in {time.perf_counter() - start:.0f} s" if missing else "made by an earlier run"
    sizes = [path.stat().st_size for path in settings.folder.glob("*/*/*.jpg")]
    mean = sum(sizes) / len(sizes)
    numbers = " and ".join(f"{count:,}" for count in settings.parts.values())
    return (
        f"{numbers} to train and evaluate with, {CLASSES} classes, {mean / 1e3:.0f} KB each: "
        f"{shown(settings.folder)}, {how}"
    )


def pack_photos(settings: Settings, console: Console) -> str:
    """Packs the photos; returns a line that describes the packed dataset."""
    start = time.perf_counter()
    with progress(console, "packing", None):
        reports = [
            fastio.pack(settings.folder / part, settings.packed / part, overwrite=True)
            for part in settings.parts
        ]
    seconds = time.perf_counter() - start
    size, shards = sum(r.bytes for r in reports), sum(r.shards for r in reports)
    return f"to {shards} shards, {size / 1e6:,.0f} MB, in {seconds:.1f} s"


# --- What is printed ------------------------------------------------------------------------------


@contextmanager
def progress(console: Console, what: str, total: int | None) -> Iterator[Report]:
    """Shows a progress bar that disappears at the end; prints a line if there is no terminal."""
    if not console.is_terminal:
        console.print(f"         {what} ...", highlight=False)
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def shown(path: Path) -> str:
    """Returns a path relative to the checkout, if it is inside."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def machine(settings: Settings) -> str:
    """Returns a description of the machine and the software."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{cpu_name()}, {settings.cores} cores, {_native.simd_active()}; {versions}"


def table(results: list[Result], accuracies: Sequence[Sequence[float]]) -> Table:
    """Returns the table of results; epochs are compared with those of the first result.

    Args:
        results: the measurements of each loader.
        accuracies: of the trainings with each loader, 0 to 1.
    """
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("")
    heads = [
        "loading\nalone",
        "epoch of\ntraining",
        "waiting\nfor data",
        "epoch\nspeed-up",
        "accuracy",
    ]
    for head in heads:
        out.add_column(head, justify="right", vertical="bottom")
    for result, reached in zip(results, accuracies, strict=True):
        mean, error = _mean(reached)
        out.add_row(
            result.name,
            f"{result.images_per_s:,.0f}/s",
            f"{result.epoch_s:.1f} s",
            f"{result.wait_s:.1f} s",
            f"{results[0].epoch_s / result.epoch_s:.1f} x",
            f"{100 * mean:.1f} ± {100 * error:.1f}%",
        )
    return out


def recoded_table(epochs: Sequence[RecodedEpoch], packed: Result) -> Table:
    """Returns the table of epochs with a cache, compared with the packed dataset."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in (
        "same folder, cache=\nepoch",
        "read from\nthe cache",
        "loading\nalone",
        "of packed",
    ):
        out.add_column(head, justify="right", vertical="bottom")
    last = len(epochs)
    for number in sorted({*(1 << power for power in range(8)), last}):
        if number <= last:
            epoch = epochs[number - 1]
            ratio = epoch.images_per_s / packed.images_per_s
            rate = f"{epoch.images_per_s:,.0f}/s"
            out.add_row(str(number), f"{epoch.share:.0%}", rate, f"{ratio:.0%}")
    return out


def about_speed(results: list[Result], settings: Settings) -> str:
    """Returns a text that explains the two speeds."""
    plain, fast = results[0], results[-1]
    alone = fast.images_per_s / plain.images_per_s
    busy_s = fast.epoch_s - fast.wait_s
    text = (
        f"fastio loads {alone:.1f} times as many images per second, and an epoch of training is "
        f"{plain.epoch_s / fast.epoch_s:.1f} times shorter. "
    )
    if settings.device.type == "cuda":
        return text + f"The training steps took {busy_s:.1f} s of an epoch, without waiting."
    return text + (
        f"This machine has no accelerator: the training steps took {busy_s:.1f} s of an epoch on "
        "the cores that also load the images. On an accelerator they would use no core. There, an "
        "epoch that waits for data becomes shorter by as much as loading alone."
    )


def about_cache(epochs: Sequence[RecodedEpoch]) -> str:
    """Returns a text that explains the second table."""
    whole = epochs[-1].share == 1
    after = f"after {len(epochs) - 1} epochs" if whole else f"not within {MOST_EPOCHS} epochs"
    return (
        "With cache=fastio.Cache(FOLDER, pack='always'), one changed line and no packing, the "
        f"photos were recoded while epochs ran: all of them {after}. If training leaves "
        "processors idle, cache=FOLDER is enough: recoding then uses only the idle time."
    )


def about_accuracy(plain: Sequence[float], fast: Sequence[float]) -> str:
    """Returns a text that compares DataLoader's accuracy with fastio's.

    They are called equal if the difference of the means is in the 95% interval of chance.

    Args:
        plain: the accuracies of the trainings with DataLoader, 0 to 1.
        fast: those with fastio; as many.
    """
    (first, first_error), (second, second_error) = _mean(plain), _mean(fast)
    difference, noise = abs(first - second), STUDENT_T * math.hypot(first_error, second_error)
    verdict = "equal accuracy."
    if difference > noise:
        verdict = (
            "NOT equal. With equal loaders, this happens in 5 of 100 cases. `tools/demo "
            "--trainings 16` compares 16 trainings."
        )
    return (
        f"The accuracy is the mean of {len(plain)} trainings with different random crops, ± its "
        f"standard error. The means of DataLoader and of fastio, packed, differ by "
        f"{100 * difference:.1f} points; chance explains up to {100 * noise:.1f}: {verdict}"
    )


def _mean(accuracies: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and its standard error."""
    error = statistics.stdev(accuracies) / math.sqrt(len(accuracies))
    return statistics.mean(accuracies), error


NEXT = """\
Next, with photos of your own (PHOTOS has a folder of images for each class):

  .venv/bin/python benchmarks/images.py PHOTOS    # measures how fast they load
  .venv/bin/fastio pack PHOTOS PACKED             # packs them, once
  .venv/bin/fastio show PACKED --out sheet.png    # writes a picture of some of them

README.md shows the two lines that change in a training script.\
"""


def train_again(
    first: Result, folder: Path | None, count: int, settings: Settings, console: Console
) -> list[float]:
    """Trains with a loader until it was trained with `count` times; returns the accuracies.

    Args:
        first: the result of the first training with it.
        folder: what fastio loads; None for DataLoader.
        count: the number of trainings.
        settings, console: of the demo.
    """
    epoch, val = settings.photos // BATCH * BATCH, settings.parts["val"]
    images = (count - 1) * (settings.epochs * epoch + val)
    with progress(console, f"{first.name}, {count - 1} times more", images) as report:
        again = [accuracy_again(settings, seed, folder, report) for seed in range(1, count)]
    return [first.accuracy, *again]


def run(settings: Settings, trainings: int, keep: bool, console: Console) -> None:
    """Makes and packs the photos, trains, and prints the tables."""

    def say(text: str, indent: int = 0) -> None:
        console.print(textwrap.fill(text, 80, subsequent_indent=" " * indent), highlight=False)

    say(f"machine  {machine(settings)}", 9)
    say(f"photos   {make_photos(settings, console)}", 9)
    try:
        say(f"packed   {pack_photos(settings, console)}", 9)
        say(
            f"training with each loader: epochs {settings.epochs}, workers or threads "
            f"{settings.cores}, RandomResizedCrop({settings.size}), flip, normalise, on "
            f"{settings.device}",
            9,
        )
        results, loaded = [], LOADING_EPOCHS + settings.epochs
        epoch, val = settings.photos // BATCH * BATCH, settings.parts["val"]
        for contender in contenders(settings):
            with progress(console, contender.name, loaded * epoch + val) as report:
                results.append(measure(contender, settings, report))
        with progress(console, "fastio, same folder with a cache", None) as report:
            recoded = recoded_epochs(settings, report)
        accuracies = [
            train_again(result, folder, trainings, settings, console)
            for result, folder in zip(
                results, (None, settings.folder, settings.packed), strict=True
            )
        ]
    finally:
        if not keep:
            shutil.rmtree(settings.packed, ignore_errors=True)
        shutil.rmtree(settings.cache, ignore_errors=True)
    console.print(table(results, accuracies))
    console.print(recoded_table(recoded, results[-1]))
    say(about_cache(recoded))
    console.print()
    say(about_speed(results, settings))
    console.print()
    say(about_accuracy(accuracies[0], accuracies[-1]))
    console.print(f"\n{NEXT}", highlight=False, markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/demo",
        description="Trains a small network on the same photos with torch's DataLoader and Pillow, "
        "and with fastio, and compares. The first run takes a few minutes longer, because it makes "
        "the photos; later runs use them again, from build/demo/.",
    )
    parser.add_argument(
        "--count", type=int, default=800, metavar="N", help="photos to train with (800)"
    )
    parser.add_argument("--epochs", type=int, default=6, metavar="E", help="of training (6)")
    parser.add_argument("--size", type=int, default=128, metavar="PX", help="of crops (128)")
    parser.add_argument(
        "--trainings",
        type=int,
        default=TRAININGS,
        metavar="N",
        help=f"with each loader, whose mean accuracies are compared ({TRAININGS})",
    )
    parser.add_argument("--keep", action="store_true", help="also keep the packed dataset")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build" / "demo",
        help="folder for the photos and the packed dataset (build/demo)",
    )
    options = parser.parse_args(arguments)
    if options.count < 2 * BATCH or options.epochs < 1 or options.size < 32:
        parser.error(f"--count must be at least {2 * BATCH}, --epochs 1, and --size 32")

    if options.trainings < 2:
        parser.error("--trainings must be at least 2")

    cuda = torch.cuda.is_available()
    if not cuda:
        torch.set_num_threads(1)  # the other cores are the loaders'
    settings = Settings(
        options.count,
        options.epochs,
        options.size,
        options.work,
        torch.device("cuda" if cuda else "cpu"),
        make_images.cores(),
    )
    try:
        run(settings, options.trainings, options.keep, Console())
    except (fastio.FastioError, OSError, RuntimeError) as error:
        # The error of a worker process contains its traceback; its last line says what happened.
        lines = str(error).strip().splitlines()
        print("demo:", *dict.fromkeys([lines[0], lines[-1]]), file=sys.stderr)
        print(f"demo: to make the photos again: rm -r {shown(settings.folder)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
