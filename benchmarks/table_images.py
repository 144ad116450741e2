"""Images in a column of a Parquet file, against the same photos as files and packed.

    .venv/bin/python benchmarks/table_images.py [FOLDER] [--count 2500] [--rounds 3] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. `--count` rows are copies
of the photos, no two with the same bytes, in row groups of 100 rows as the datasets package writes
them. All loaders are shuffled and deliver RandomResizedCrop(224) and RandomHorizontalFlip as uint8
batches of 64, with warm page cache and a thread or worker process for each processor. In turns: an
epoch of each. The datasets package gives PIL images, whose transforms are torchvision's.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from common import (
    about_photos,
    console,
    copied,
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
GROUP_ROWS = 100
CROPS = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]


def write_table(folder: Path, path: Path) -> None:
    """Writes the photos of a folder as rows with an image, as the datasets package does."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    classes = sorted({file.parent.name for file in files})
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for begin in range(0, len(files), GROUP_ROWS):
            some = files[begin : begin + GROUP_ROWS]
            rows = [{"bytes": file.read_bytes(), "path": file.name} for file in some]
            labels = [classes.index(file.parent.name) for file in some]
            writer.write_table(pa.table([pa.array(rows, image), labels], schema=schema))


def made(source: Path, threads: int) -> fastio.Loader[Any]:
    """Returns fastio's loader."""
    steps = {"image": CROPS}
    return fastio.Loader(source, BATCH, shuffle=True, num_workers=threads, transforms=steps)


def of_datasets(path: Path, cache: Path, workers: int) -> Any:
    """Returns torch's loader of the datasets package's images, cropped by torchvision."""
    import datasets  # type: ignore[import-untyped]
    import plain_torchvision  # in tools/
    import torch

    v2 = plain_torchvision.load().transforms.v2

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    opened = datasets.load_dataset(
        "parquet", data_files=str(path), split="train", features=features, cache_dir=str(cache)
    )
    steps = v2.Compose(
        [v2.RGB(), v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )

    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**rows, "image": [steps(image) for image in rows["image"]]}

    opened.set_transform(transform)
    return torch.utils.data.DataLoader(
        opened, BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )


def rate(loader: Iterable[Any]) -> float:
    """Returns the images per second of an epoch."""
    start, images = time.perf_counter(), 0
    for batch in loader:
        labels = batch["label"] if isinstance(batch, dict) else batch[1]
        images += len(labels)
    return images / (time.perf_counter() - start)


def measure(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Returns the images per second of each way, in each round."""
    files = source_photos(arguments, work)
    folder = copied(files, arguments.count, work / "photos")
    table = work / "photos.parquet"
    write_table(folder, table)
    sources = {"folder": folder, "Parquet": table}
    codecs: dict[str, Any] = {"packed jpeg": "jpeg", "packed blocks": "blocks"}
    for name, codec in codecs.items():
        sources[name] = work / name.replace(" ", "-")
        fastio.pack(folder, sources[name], codec=codec)
    ways: dict[str, Callable[[], float]] = {}
    loaders = {name: made(source, arguments.threads) for name, source in sources.items()}
    for name, loader in loaders.items():
        ways[name] = partial(rate, loader)
    if not arguments.alone:
        theirs = of_datasets(table, work / "cache", arguments.threads)
        ways["datasets, DataLoader"] = partial(rate, theirs)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.rounds + 1):
        for name, way in ways.items():
            if turn:
                found[name].append(way())
            else:
                way()  # fills the page cache
    for loader in loaders.values():
        loader.close()
    return {
        "photos": about_photos(files, arguments.held_out),
        "machine": machine(),
        "rates": found,
    }


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument("--count", type=int, default=2500, help="rows (default: 2500)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--alone", action="store_true", help="without the datasets package")
    arguments = parser.parse_args()
    with temporary_folder() as work:
        result = measure(arguments, work)
    out = console()
    out.print(machine_line())
    out.print(result["photos"])
    table = new_table("images", "images/s", "times Parquet")
    base = statistics.median(result["rates"]["Parquet"])
    for name, rates in result["rates"].items():
        table.add_row(
            name, f"{statistics.median(rates):,.0f}", f"{statistics.median(rates) / base:.2f}"
        )
    out.print(table)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
