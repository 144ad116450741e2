"""Python for each sample: images a second of fastio.PerSample against DataLoader's workers.

    .venv/bin/python benchmarks/per_sample.py [FOLDER] [--workers 2] [--rows 2000] [--rounds 5]

All loaders do the same: a RandomResizedCrop(224) of a photo, then a pipeline of five steps in
Python that ends in normalised float32, in batches of 64. The steps are Albumentations' if it is
installed, else similar ones written with NumPy and Pillow.

- DataLoader: worker processes read and decode JPEGs with Pillow, and crop.
- DataLoader, no decoding: its worker processes get crops from memory.
- fastio: native threads read packed photos and crop; as many workers call the pipeline.

The bar: 0.9 times the images a second of the DataLoader that decodes, times (its time a sample /
its time without decoding), which is 0.9 times those of the second DataLoader. A round runs each
loader once; the table has medians of rounds. Nothing else should run on the machine.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    about_photos,
    console,
    linked,
    machine,
    machine_line,
    new_table,
    photo_parser,
    source_photos,
    temporary_folder,
    write_json,
)
from PIL import Image, ImageEnhance, ImageFilter
from torch.utils.data import DataLoader, Dataset

import fastio

SIZE = 224
BATCH = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BAR = 0.9


class Written:
    """Five steps with NumPy and Pillow: flip, colours, blur, a hole, normalisation."""

    def __call__(self, pixels: Any) -> Any:
        image = Image.fromarray(pixels[:, ::-1] if random.random() < 0.5 else pixels)
        if random.random() < 0.8:
            for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
                image = enhancer(image).enhance(random.uniform(0.6, 1.4))
        if random.random() < 0.5:
            image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        floats = np.array(image, np.float32)
        if random.random() < 0.5:
            top, left = (random.randrange(SIZE - 56) for _ in range(2))
            floats[top : top + 56, left : left + 56] = 0
        mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
        return (floats / 255 - mean) / std


class Albumented:
    """Five steps of Albumentations."""

    def __init__(self) -> None:
        a = import_module("albumentations")
        import_module("cv2").setNumThreads(0)  # as its users do in worker processes
        self._steps = a.Compose(
            [
                a.HorizontalFlip(p=0.5),
                a.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
                a.GaussianBlur(p=0.5),
                a.CoarseDropout(p=0.5),
                a.Normalize(MEAN, STD),
            ]
        )

    def __call__(self, pixels: Any) -> Any:
        return self._steps(image=pixels)["image"]


def pipeline() -> Callable[[Any], Any]:
    """The five steps."""
    try:
        return Albumented()
    except ImportError:
        return Written()


class Photos(Dataset[Any]):
    """Crops of photos, through the five steps; from files, or decoded before."""

    def __init__(self, files: Sequence[Path], steps: Callable[[Any], Any], decoded: bool) -> None:
        self._files = files
        self._steps = steps
        few = files[:256]
        self._crops = [self._crop(file) for file in few] if decoded else None

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> Any:
        crops = self._crops
        pixels = self._crop(self._files[row]) if crops is None else crops[row % len(crops)].copy()
        floats = self._steps(pixels)
        return torch.from_numpy(floats.transpose(2, 0, 1)), row

    def _crop(self, file: Path) -> Any:
        with Image.open(file) as image:
            width, height = image.size
            area = width * height * random.uniform(0.08, 1.0)
            side = min(area**0.5, width, height)
            left, top = random.uniform(0, width - side), random.uniform(0, height - side)
            box = (left, top, left + side, top + side)
            return np.array(image.convert("RGB").resize((SIZE, SIZE), box=box, resample=2))


def epoch_rate(loader: Any, rows: int) -> float:
    """Images a second of an epoch, after one in which workers have started."""
    for _ in loader:
        pass
    begin = time.perf_counter()
    for _ in loader:
        pass
    return rows / (time.perf_counter() - begin)


def of_dataloader(dataset: Photos, workers: int) -> float:
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
    return epoch_rate(loader, len(dataset))


def of_fastio(
    packed: Path, steps: Callable[[Any], Any], kind: Any, workers: int, rows: int
) -> float:
    crop = fastio.RandomResizedCrop(SIZE)
    step = fastio.PerSample(steps, workers=kind, count=workers)
    with fastio.Loader(
        packed, BATCH, shuffle=True, num_workers=workers, transforms={"image": [crop, step]}
    ) as loader:
        return epoch_rate(loader, rows)


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    out, steps = console(), pipeline()
    with temporary_folder() as work:
        photos = source_photos(arguments, work)
        folder = linked(photos, arguments.rows, work / "rows")
        files = sorted(folder.rglob("*.*"))
        fastio.pack(folder, work / "packed")
        workers, rows = arguments.workers, len(files)
        of_packed = partial(of_fastio, work / "packed", steps)
        makes: dict[str, Callable[[], float]] = {
            "DataLoader": partial(of_dataloader, Photos(files, steps, False), workers),
            "DataLoader, no decoding": partial(of_dataloader, Photos(files, steps, True), workers),
            "fastio, processes": partial(of_packed, "processes", workers, rows),
            "fastio, threads": partial(of_packed, "threads", workers, rows),
        }
        rates: dict[str, list[float]] = {name: [] for name in makes}
        for _ in range(arguments.rounds):
            for name, make in makes.items():
                rates[name].append(make())
    bar = [BAR * rate for rate in rates["DataLoader, no decoding"]]
    table = new_table("loader", "images/s", "of DataLoader", "of the bar")
    for name, found in rates.items():
        table.add_row(
            name,
            f"{statistics.median(found):,.0f}",
            f"{ratio(found, rates['DataLoader']):.2f} x",
            f"{ratio(found, bar):.2f} x",
        )
    out.print(f"{about_photos(photos, arguments.held_out)}; {workers} workers; {machine_line()}")
    out.print(f"the steps of {type(steps).__name__}; medians of {arguments.rounds} rounds")
    out.print(table)
    write_json(arguments.json, {"machine": machine(), "images_per_s": rates})


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of rounds."""
    return statistics.median(a / b for a, b in zip(ones, others, strict=True))


if __name__ == "__main__":
    main()
