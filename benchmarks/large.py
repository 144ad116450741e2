"""Crops of large photos on one core: fastio's blocks against Pillow, with and without draft mode.

    .venv/bin/python benchmarks/large.py [FOLDER] [--held-out] [--megapixels 2 4 12] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. Photos of 2, 4 and 12
megapixels are made from them: each is a mosaic of given photos, fitted to cells about `--enlarge`
times their size with Lanczos, sharpened (unsharp mask), with sensor-like noise if asked for, and
stored as phones do, 4:2:0 at quality 90. With --enlarge 1 the mosaic has all the detail of the
given photos, which is more than a phone's picture has a pixel; with 8 it has next to none.

All do RandomResizedCrop(224) and RandomHorizontalFlip to uint8, the same crops, warm, in one
process that stays on one core; a pass runs all of them in turn, the table has medians of passes.

  fastio          the whole Loader with one thread, from the packed dataset
  Pillow, draft   Image.draft() to the smallest of 1/1, 1/2, 1/4 and 1/8 at which the crop still has
                  224 pixels each way, then crop and resize in one call of resize()
  Pillow          convert, crop, resize

"KB read" is what the loader read of a record. --keep leaves the photos in a folder, those of each
size in one of their own, for benchmarks/codec.py to look closer.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    about_photos,
    console,
    linked,
    machine,
    machine_line,
    new_table,
    one_core,
    photo_parser,
    source_photos,
    temporary_folder,
    write_json,
)
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps
from rich.table import Table

import fastio
from fastio.sources import FolderDataset
from fastio.transforms import Augmentation

SIZE = 224
BATCH = 16
CROPS = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]
CELL = (504, 378)  # of the mosaic before it is enlarged: about the size of ImageNet's photos

# --- Large photos ---------------------------------------------------------------------------------


def make_large(
    files: Sequence[Path],
    folder: Path,
    megapixels: float,
    count: int,
    enlarge: float = 2,
    noise: float = 0,
) -> list[Path]:
    """Makes `count` JPEG files of so many megapixels, 4:3, in a class folder of `folder`.

    Args:
        files: photos to take in turn.
        enlarge: how many times larger than CELL each of them is in the mosaic.
        noise: standard deviation of what is added to every sample, in levels.
    """
    width = 16 * round(math.sqrt(megapixels * 1e6 * 4 / 3) / 16)
    height = width * 3 // 4
    supply = cycle(files)
    rng = np.random.default_rng(0)
    (folder / "large").mkdir(parents=True)
    paths = []
    for index in range(count):
        image = mosaic(supply, width, height, enlarge)
        image = image.filter(ImageFilter.UnsharpMask(radius=1.5, percent=100, threshold=0))
        if noise:
            samples = np.asarray(image) + rng.normal(0, noise, (height, width, 3))
            image = Image.fromarray(np.clip(np.rint(samples), 0, 255).astype(np.uint8))
        paths.append(folder / "large" / f"{index:04}.jpg")
        image.save(paths[-1], quality=90, subsampling="4:2:0")
    return paths


def mosaic(supply: Any, width: int, height: int, enlarge: float) -> Image.Image:
    """The next photos of the supply, fitted to cells, side by side."""
    cell = round(CELL[0] * enlarge), round(CELL[1] * enlarge)
    columns, rows = math.ceil(width / cell[0]), math.ceil(height / cell[1])
    out = Image.new("RGB", (width, height))
    for index, path in enumerate(islice(supply, columns * rows)):
        with Image.open(path) as photo:
            upright = ImageOps.exif_transpose(photo).convert("RGB")
        fitted = ImageOps.fit(upright, cell, Image.Resampling.LANCZOS)
        out.paste(fitted, (index % columns * cell[0], index // columns * cell[1]))
    return out


# --- The contenders -------------------------------------------------------------------------------


def pillow_crop(path: Path, drawn: Augmentation, draft: bool) -> NDArray[np.uint8]:
    """One crop as Pillow makes it: (SIZE, SIZE, 3)."""
    y, x, height, width = drawn.crop
    with open(path, "rb") as file:
        image: Image.Image = Image.open(file)
        if draft:
            full = image.size
            wanted = math.ceil(full[0] * SIZE / width), math.ceil(full[1] * SIZE / height)
            image.draft("RGB", wanted)
            across, down = image.width / full[0], image.height / full[1]
            box = (x * across, y * down, (x + width) * across, (y + height) * down)
            image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        else:
            image = image.convert("RGB").crop((x, y, x + width, y + height))
            image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if drawn.flip_horizontal:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image.convert("RGB"))


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run_passes(folder: Path, packed: Path, passes: int) -> dict[str, Any]:
    """Milliseconds an image of every pass, and what the loader read."""
    paths = [Path(path) for path in FolderDataset(folder).paths]
    rows = np.arange(len(paths))
    times: dict[str, list[float]] = {"fastio": [], "Pillow, draft": [], "Pillow": []}
    with (
        one_core(),
        fastio.Loader(packed, BATCH, num_workers=1, transforms={"image": CROPS}) as loader,
    ):

        def fast() -> None:
            for _ in loader:
                pass

        fast()  # starts the thread, warms the page cache
        for path in paths:
            path.read_bytes()
        for epoch in range(1, passes + 1):
            drawn = loader.augmentation(rows, epoch=epoch)

            def plain(draft: bool, drawn: list[Augmentation] = drawn) -> None:
                for path, draw in zip(paths, drawn, strict=True):
                    pillow_crop(path, draw, draft)

            times["fastio"].append(timed(fast))
            times["Pillow, draft"].append(timed(lambda: plain(True)))
            times["Pillow"].append(timed(lambda: plain(False)))
        stats = loader.stats()
    return {
        "all_ms": {name: [1e3 * t / len(paths) for t in values] for name, values in times.items()},
        "read_kb": stats.bytes_read / stats.images_decoded / 1e3,
    }


def measure(
    files: Sequence[Path], work: Path, megapixels: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    photos = make_large(
        files, work / "photos", megapixels, arguments.photos, arguments.enlarge, arguments.noise
    )
    folder = linked(photos, arguments.rows, work / "repeated")
    fastio.pack(folder, work / "packed", codec="blocks")
    result = run_passes(folder, work / "packed", arguments.passes)
    medians = {name: statistics.median(values) for name, values in result["all_ms"].items()}
    with Image.open(photos[0]) as first:
        size = first.size
    return {
        **result,
        "width": size[0],
        "height": size[1],
        "jpeg_kb": sum(path.stat().st_size for path in photos) / len(photos) / 1e3,
        "ms": medians,
        "against": {name: value / medians["fastio"] for name, value in medians.items()},
    }


def table(sizes: dict[str, dict[str, Any]]) -> Table:
    out = new_table(
        "photos",
        "JPEG KB",
        "KB read",
        "fastio ms",
        "draft ms",
        "Pillow ms",
        "against draft",
        "against Pillow",
    )
    for name, r in sizes.items():
        out.add_row(
            f"{name} MP, {r['width']} x {r['height']}",
            f"{r['jpeg_kb']:,.0f}",
            f"{r['read_kb']:,.0f}",
            f"{r['ms']['fastio']:.3f}",
            f"{r['ms']['Pillow, draft']:.2f}",
            f"{r['ms']['Pillow']:.2f}",
            f"{r['against']['Pillow, draft']:.1f} x",
            f"{r['against']['Pillow']:.1f} x",
        )
    return out


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument("--megapixels", type=float, nargs="+", default=[2, 4, 12])
    parser.add_argument("--photos", type=int, default=8, help="of each size (8)")
    parser.add_argument("--rows", type=int, default=64, help="crops of a pass (64)")
    parser.add_argument("--passes", type=int, default=5, help="(5)")
    parser.add_argument("--enlarge", type=float, default=2, help="of the given photos (2)")
    parser.add_argument("--noise", type=float, default=0, help="standard deviation, levels (0)")
    parser.add_argument("--keep", type=Path, help="a new folder for the photos made")
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(parents=True)
    sizes = {}
    with temporary_folder() as work:
        files = source_photos(arguments, work)
        for megapixels in arguments.megapixels:
            name = f"{megapixels:g}"
            sizes[name] = measure(files, work / name, megapixels, arguments)
            if arguments.keep:
                shutil.move(work / name / "photos", arguments.keep / name)
        about = about_photos(files, arguments.held_out)
    result = {
        "machine": machine(),
        "photos": about,
        "enlarge": arguments.enlarge,
        "noise": arguments.noise,
        "sizes": sizes,
    }
    console().print(
        f"RandomResizedCrop({SIZE}) + flip of large photos, one core, medians of "
        f"{arguments.passes} passes of {arguments.rows} crops; {machine_line()}",
        f"mosaics, 4:2:0, quality 90, of {about}, enlarged {arguments.enlarge:g} times, sharpened, "
        f"noise of {arguments.noise:g} levels",
        table(sizes),
        sep="\n",
    )
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
