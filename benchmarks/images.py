"""Images a second: a plain DataLoader with Pillow against fastio, from the folder and packed.

    .venv/bin/python benchmarks/images.py [FOLDER] [--count 5000] [--threads 2] [--json FILE]

FOLDER has a folder of images for each class; without it, images are made. All loaders do the same
work, RandomResizedCrop(224) and RandomHorizontalFlip to uint8 batches, on the same files, warm in
the page cache, in alternating rounds of one process; the table shows medians. Nothing else should
run on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

import fastio
from fastio import _native
from fastio.formats import FolderDataset

ROOT = Path(__file__).parent.parent
SIZE = 224
BATCH = 64
CROPS = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]


class PillowFolder(Dataset[tuple[torch.Tensor, int]]):
    """What most people write: open, convert, crop, resize, flip, to a uint8 tensor (C, H, W)."""

    def __init__(self, folder: Path) -> None:
        classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(classes)
            for path in sorted((folder / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        image = image.crop(random_box(image.width, image.height))
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image))
        return pixels.permute(2, 0, 1).contiguous(), label


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params as a Pillow box."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            return x, y, x + w, y + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    x, y = (width - w) // 2, (height - h) // 2
    return x, y, x + w, y + h


def repeated(folder: Path, count: int, target: Path) -> Path:
    """The folder's images as links, repeated until there are `count`."""
    files = [path for path in sorted(folder.glob("*/*")) if path.is_file()]
    if not files:
        sys.exit(f"{folder} has no folders with images")
    for index in range(count):
        source = files[index % len(files)]
        link = target / source.parent.name / f"{index // len(files):05}-{source.name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.resolve())
    return target


def images_per_s(loader: Iterable[Any]) -> float:
    """One epoch's rate, from the request for an iterator to the last batch."""
    start = time.perf_counter()
    images = 0
    for batch, _ in loader:
        images += len(batch)
    return images / (time.perf_counter() - start)


def alternating(loaders: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Rates of all loaders, round by round, so that a drifting machine hits all alike."""
    for loader in loaders.values():  # warms the page cache and starts workers and threads
        images_per_s(loader)
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            rates[name].append(images_per_s(loader))
    return rates


def quality(folder: Path, count: int) -> dict[str, float]:
    """The batches against Pillow's crop and resize of fully decoded pixels, over `count` photos."""
    differences = []
    with fastio.Loader(folder, count, transforms={"image": CROPS}) as loader:
        images, _ = next(iter(loader))
        rows = loader.batch.rows
        drawn = loader.augmentation(rows, epoch=0)
    paths = FolderDataset(folder).paths
    for found, row, draw in zip(images, rows.tolist(), drawn, strict=True):
        with Image.open(paths[row]) as image:
            y, x, height, width = draw.crop
            crop = image.convert("RGB").crop((x, y, x + width, y + height))
        expected = np.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        expected = expected[:, ::-1] if draw.flip_horizontal else expected
        differences.append(found.permute(1, 2, 0).numpy().astype(int) - expected)
    difference = np.abs(np.stack(differences))
    return {
        "photos": float(len(differences)),
        "mean_abs_difference": float(difference.mean()),
        "equal": float((difference == 0).mean()),
        "equal_or_off_by_one": float((difference <= 1).mean()),
    }


def first_batch_s(dataset: Path, threads: int) -> float:
    """From iter() to the first batch, on a loader made anew."""
    with fastio.Loader(
        dataset, BATCH, shuffle=True, num_workers=threads, transforms={"image": CROPS}
    ) as loader:
        start = time.perf_counter()
        next(iter(loader))
        return time.perf_counter() - start


def memory_growth_mb(dataset: Path, threads: int, epochs: int) -> float:
    """How much the process grew over epochs that end early, in MB, after five to settle."""

    def resident_mb() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    with fastio.Loader(
        dataset, BATCH, shuffle=True, num_workers=threads, transforms={"image": CROPS}
    ) as loader:
        start = 0.0
        for epoch in range(epochs + 5):
            if epoch == 5:
                start = resident_mb()
            for step, _ in enumerate(loader):
                if step == 3:
                    break
        return resident_mb() - start


def machine() -> dict[str, str]:
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "simd": str(_native.simd_active()).split(".")[-1],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def measure(folder: Path, packed: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    threads = arguments.threads

    def loader(source: Path, count: int) -> fastio.Loader:
        return fastio.Loader(
            source, BATCH, shuffle=True, num_workers=count, transforms={"image": CROPS}
        )

    baseline = DataLoader(
        PillowFolder(folder), BATCH, shuffle=True, num_workers=threads, persistent_workers=True
    )
    loaders: dict[str, Any] = {
        f"DataLoader, Pillow, {threads} workers": baseline,
        f"fastio, folder, {threads} threads": loader(folder, threads),
        f"fastio, packed jpeg, {threads} threads": loader(packed, threads),
        "fastio, packed jpeg, 1 thread": loader(packed, 1),
    }
    rates = alternating(loaders, arguments.rounds)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    names = list(medians)
    result = {
        "machine": machine(),
        "images": arguments.count,
        "rounds": arguments.rounds,
        "images_per_s": medians,
        "all_images_per_s": rates,
        "against_dataloader": {name: medians[name] / medians[names[0]] for name in names},
        "threads_scale": medians[names[2]] / medians[names[3]],
        "stats": {
            name: other.stats().to_dict()
            for name, other in loaders.items()
            if other is not baseline
        },
    }
    for other in loaders.values():
        if other is not baseline:
            other.close()
    return result


def table(result: dict[str, Any]) -> Table:
    m = result["machine"]
    out = Table(
        title=f"{result['images']} images, RandomResizedCrop({SIZE}) + flip to uint8, warm; "
        f"{m['cpu']}, {m['cores']} cores, {m['simd']}",
        title_justify="left",
    )
    for name in ("loader", "images/s (median)", "min .. max", "against DataLoader"):
        out.add_column(name, justify="left" if name == "loader" else "right")
    for name, rate in result["images_per_s"].items():
        rates = result["all_images_per_s"][name]
        ratio = result["against_dataloader"][name]
        spread = f"{min(rates):,.0f} .. {max(rates):,.0f}"
        out.add_row(name, f"{rate:,.0f}", spread, f"{ratio:.2f} x")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="images in class folders")
    parser.add_argument("--count", type=int, default=5000, help="images, by repeating (5000)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    console = Console()
    work = Path(tempfile.mkdtemp(prefix="fastio-bench-"))
    try:
        source = arguments.folder
        if source is None:
            source = work / "made"
            command = [str(ROOT / "tools" / "make_images"), str(source), "--count", "500"]
            subprocess.run([*command, "--classes", "10", "--seed", "0"], check=True)
        folder = repeated(source, arguments.count, work / "folder")
        packed = work / "packed"
        start = time.perf_counter()
        report = fastio.pack(folder, packed, codec="jpeg")
        pack_s = time.perf_counter() - start
        result = measure(folder, packed, arguments)
        result["quality"] = quality(source, min(100, len(list(source.glob("*/*")))))
        result["first_batch_s"] = first_batch_s(packed, arguments.threads)
        result["memory_growth_mb"] = memory_growth_mb(packed, arguments.threads, 50)
        result["pack_ms_an_image"] = pack_s / report.rows * 1e3
        console.print(table(result))
        q = result["quality"]
        console.print(
            f"threads scale: {result['threads_scale']:.2f} x with {arguments.threads}\n"
            f"against Pillow on {q['photos']:.0f} photos: mean difference "
            f"{q['mean_abs_difference']:.4f} levels, {q['equal']:.2%} equal, "
            f"{q['equal_or_off_by_one']:.3%} equal or off by one\n"
            f"first batch after {result['first_batch_s'] * 1e3:.0f} ms; memory grew by "
            f"{result['memory_growth_mb']:.1f} MB over 50 epochs with early breaks; "
            f"packing took {result['pack_ms_an_image']:.2f} ms an image"
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
