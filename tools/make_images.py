"""Makes a folder of JPEGs that cost as much to decode as photos, for tests and benchmarks.

    tools/make_images OUT --count 2000 --classes 10 --seed 0

photos.py draws the pictures. This file chooses sizes, sampling and quality, and writes
OUT/class_00/000000.jpg and so on, with a folder for each class. The same arguments give the same
bytes (with the same NumPy, Pillow and libjpeg), whatever the number of processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import photos
from PIL import Image, ImageFile

# How many of every hundred pictures in a row are stored which way, in random order within them.
# ImageNet's photos are 4:4:4 and 4:2:0 in about this proportion; of 4:2:2 and gray there are a few
# more here than there, so that a small folder has them too.
SAMPLING_PERCENT = {"4:4:4": 74, "4:2:0": 20, "4:2:2": 3, "gray": 3}

# Height to width of a picture lying on its side, with its share.
ASPECTS = {3 / 4: 0.6, 2 / 3: 0.3, 1.0: 0.05, 9 / 16: 0.05}
PORTRAIT_SHARE = 0.25
SMALLEST_SIDE = 96

# Pillow gives libjpeg one buffer for a whole file when Huffman tables are optimised, and its guess
# of a byte a pixel is too small for a noisy picture.
ImageFile.MAXBLOCK = max(ImageFile.MAXBLOCK, 4 * photos.MAX_SIDE**2)


@dataclass(frozen=True)
class Settings:
    """What decides a picture, besides its index."""

    seed: int
    classes: int


@dataclass(frozen=True)
class Recipe:
    """How one picture is made: its class, size in pixels, sampling and libjpeg quality."""

    label: int
    height: int
    width: int
    sampling: str
    quality: int


def recipe(settings: Settings, index: int, rng: np.random.Generator) -> Recipe:
    """The recipe of picture `index`, taking from `rng` what is random in it."""
    # Four of five are 500 pixels long, as ImageNet's are; the others anything from 150 to MAX_SIDE.
    long_side = 500.0
    if rng.uniform() < 0.2:
        long_side = float(np.clip(500 * rng.lognormal(0.05, 0.45), 150, photos.MAX_SIDE))
    aspect = rng.choice(list(ASPECTS), p=list(ASPECTS.values()))
    sides = [max(SMALLEST_SIDE, round(long_side * aspect)), round(long_side)]
    if rng.uniform() < PORTRAIT_SHARE:
        sides.reverse()
    quality = 96 if rng.uniform() < 0.7 else int(rng.integers(72, 93))

    hundred = np.random.default_rng([settings.seed, 1, index // 100])
    kinds = [name for name, percent in SAMPLING_PERCENT.items() for _ in range(percent)]
    sampling = kinds[hundred.permutation(100)[index % 100]]
    return Recipe(index % settings.classes, sides[0], sides[1], sampling, quality)


def image_path(settings: Settings, index: int) -> Path:
    """Where picture `index` lies in the folder: class_00/000000.jpg."""
    digits = max(2, len(str(settings.classes - 1)))
    return Path(f"class_{index % settings.classes:0{digits}}/{index // settings.classes:06}.jpg")


def write_image(root: Path, settings: Settings, index: int) -> None:
    """Draws picture `index` and writes it under `root`, whose class folders exist."""
    rng = np.random.default_rng([settings.seed, 0, index])
    how = recipe(settings, index, rng)
    pixels = photos.draw(how.height, how.width, how.label, rng)
    picture = Image.frombytes("YCbCr", (how.width, how.height), pixels.tobytes())
    gray = how.sampling == "gray"
    # With Huffman tables of their own, as ImageNet's photos have them (120 of 125).
    (picture.getchannel("Y") if gray else picture).save(
        root / image_path(settings, index),
        quality=how.quality,
        subsampling=-1 if gray else how.sampling,
        optimize=True,
    )


def start_worker() -> None:
    """Leaves Ctrl-C to the parent process, and draws the noise before the first picture."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    photos.noise()


def write_all(root: Path, settings: Settings, count: int, workers: int) -> Iterator[int]:
    """Writes pictures 0 to count - 1 under `root` and yields how many are there so far."""
    write = partial(write_image, root, settings)
    if workers == 1:
        for index in range(count):
            write(index)
            yield index + 1
        return
    # Spawned, not forked: the caller may have threads.
    with multiprocessing.get_context("spawn").Pool(workers, start_worker) as pool:
        done = pool.imap_unordered(write, range(count), chunksize=4)
        yield from (i for i, _ in enumerate(done, start=1))


def make_images(
    out: Path,
    count: int,
    classes: int,
    seed: int,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Makes the folder `out` with `count` JPEGs in `classes` folders of (nearly) equal size.

    workers is the number of processes, by default one for each core this process may use.
    progress is called with the number of pictures written so far.
    The folder appears when it is complete; a run that was killed leaves `out`.partial, which the
    next run clears away. Raises FileExistsError when `out` has something in it, ValueError for
    counts out of range.
    """
    if not 1 <= classes <= photos.MAX_CLASSES:
        raise ValueError(f"classes must be from 1 to {photos.MAX_CLASSES}, got {classes}")
    if count < classes:
        raise ValueError(f"count must be at least the number of classes, {classes}, got {count}")
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"{out} exists and is not an empty folder: choose another, or remove it"
        )

    settings = Settings(seed, classes)
    unfinished = out.with_name(out.name + ".partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    for label in range(classes):
        (unfinished / image_path(settings, label)).parent.mkdir(parents=True)
    try:
        for done in write_all(unfinished, settings, count, workers or cores()):
            if progress:
                progress(done)
        unfinished.replace(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/make_images",
        description="Makes JPEGs of about 110 KB and 0.2 megapixels, which cost as much to decode "
        "as photos, in a folder for each class. Nothing is downloaded.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make; new or empty")
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="images (1000)")
    parser.add_argument(
        "--classes", type=int, default=10, metavar="K", help=f"1 to {photos.MAX_CLASSES} (10)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of random numbers (0)")
    parser.add_argument("--workers", type=int, metavar="W", help="processes (one per core)")
    options = parser.parse_args(arguments)

    start = time.monotonic()

    def show(done: int) -> None:
        if sys.stderr.isatty() and (done % 20 == 0 or done == options.count):
            rate = done / (time.monotonic() - start)
            end = "\n" if done == options.count else ""
            print(f"\r{done}/{options.count} images, {rate:.0f}/s", end=end, file=sys.stderr)

    try:
        make_images(
            options.out, options.count, options.classes, options.seed, options.workers, show
        )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"\nstopped; {options.out} was not made", file=sys.stderr)
        return 130
    size = sum(path.stat().st_size for path in options.out.glob("*/*.jpg")) / options.count
    seconds = time.monotonic() - start
    print(
        f"{options.out}: {options.count} images in {options.classes} classes, "
        f"{size / 1000:.1f} KB each on average, made in {seconds:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
