"""Data that lies elsewhere, and packing past one machine: Ray, Python datasets, photos behind URLs.

    ray       packs on a Ray cluster of two raylets with a core each, beside packs with two threads
    dataset   packs a torch Dataset in worker processes, beside a DataLoader that reads it
    urls      photos in a loopback S3 with 30 ms a request and 200 MB/s

All sides do the same work in turns. The S3 server and the cluster are those of the tests; the
server takes a part of the same cores.
"""

from __future__ import annotations

import argparse
import io
import logging
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    about_photos,
    console,
    copied,
    empty_cache_home,
    let_others_end,
    machine_line,
    new_table,
    photo_parser,
    source_photos,
    temporary_folder,
    write_json,
)
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fastio

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.object_server import object_server
from tests.ray_support import cluster_of

LATENCY_S = 0.03
BANDWIDTH = 200e6  # bytes/s
SIZE = 224


def timed(action: Callable[[], Any]) -> float:
    """Seconds that a function takes."""
    let_others_end()
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def best(found: Sequence[float]) -> str:
    """The best of some rates, and the range of all."""
    return f"{max(found):,.0f} ({min(found):,.0f})"


# --- Ray ------------------------------------------------------------------------------------------


def ray_part(arguments: argparse.Namespace, files: list[Path], work: Path) -> dict[str, Any]:
    """Photos a second of packs by two threads, and by two raylets with a core each."""
    folder = copied(files, arguments.count, work / "photos")
    out = work / "out"
    found: dict[str, list[float]] = {"threads": [], "ray": []}
    unit_s: dict[str, list[float]] = {"threads": [], "ray": []}
    tiny = [{"x": row} for row in range(8 * arguments.units)]
    with cluster_of(2) as cluster:
        import ray

        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.WARNING)

        def pack(source: Any, kind: str, **options: Any) -> None:
            how: dict[str, Any] = {"engine": "ray"} if kind == "ray" else {"workers": 2}
            fastio.pack(source, out, overwrite=True, **how, **options)

        for turn in range(arguments.rounds + 1):  # the first starts processes and imports modules
            for kind in found:
                seconds = timed(partial(pack, folder, kind, shard_size="8MiB"))
                tiny_s = timed(partial(pack, tiny, kind, shard_size=8 * 8))
                if turn:
                    found[kind].append(arguments.count / seconds)
                    unit_s[kind].append(tiny_s / arguments.units)
        ray.shutdown()
    table = new_table("packing", "photos/s: best (worst)", "of threads", "ms a unit of 8 integers")
    for kind, rates in found.items():
        ratio = max(rates) / max(found["threads"])
        table.add_row(kind, best(rates), f"{ratio:.2f}", f"{1e3 * min(unit_s[kind]):.2f}")
    console().print(table)
    return {"photos_per_s": found, "unit_s": unit_s}


# --- A Python dataset -----------------------------------------------------------------------------


class Photos(Dataset[Any]):
    """A dataset as people write them: PIL decodes, and a crop and a resize follow."""

    def __init__(self, files: Sequence[Path], count: int, kind: str) -> None:
        self.files, self.count, self.kind = files, count, kind

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        data = self.files[index % len(self.files)].read_bytes()
        if self.kind == "bytes of JPEGs":
            return {"image": data, "row": index}
        image = Image.open(io.BytesIO(data)).convert("RGB").resize((SIZE, SIZE))
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        if self.kind == "float32":
            pixels = pixels.float() / 255
        return {"image": pixels, "row": index}


def dataset_part(arguments: argparse.Namespace, files: list[Path], work: Path) -> dict[str, Any]:
    """Samples a second of a DataLoader with two workers, and of packs with two and one."""
    result: dict[str, Any] = {}
    table = new_table("samples/s", "DataLoader", "pack, 2 workers", "of it", "pack, 1 worker")
    for kind in ("uint8", "float32", "bytes of JPEGs"):
        data = Photos(files, arguments.count, kind)
        schema = fastio.Schema({"image": fastio.Image(), "row": fastio.Scalar("int64")})
        of_files: dict[str, Any] = {"codec": "jpeg", "schema": schema}
        options = of_files if kind == "bytes of JPEGs" else {}

        def read(data: Any = data) -> None:
            for _ in DataLoader(data, None, num_workers=2):
                pass

        def pack(workers: int, data: Any = data, options: Any = options) -> None:
            fastio.pack(data, work / "out", overwrite=True, workers=workers, **options)

        ways: dict[str, Callable[[], Any]] = {
            "DataLoader": read,
            "two": partial(pack, 2),
            "one": partial(pack, 1),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(arguments.rounds + 1):
            for name, way in ways.items():
                seconds = timed(way)
                if turn:
                    rates[name].append(arguments.count / seconds)
        ratio = max(rates["two"]) / max(rates["DataLoader"])
        others = (best(rates["two"]), f"{ratio:.2f}", best(rates["one"]))
        table.add_row(kind, best(rates["DataLoader"]), *others)
        result[kind] = rates
    console().print(table)
    return result


# --- Photos behind URLs ---------------------------------------------------------------------------


def urls_part(arguments: argparse.Namespace, files: list[Path], work: Path) -> dict[str, Any]:
    """Photos a second from S3: whole loaders without and with a cache.

    What is kept of JPEG files is deleted before each run but the later ones.
    """
    folder = copied(files, arguments.count, work / "photos")
    mean = sum(path.stat().st_size for path in folder.glob("*/*")) / arguments.count
    crops = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]

    def epoch(data: Any) -> float:
        with fastio.Loader(data, 64, shuffle=True, transforms=crops, num_workers=2) as loader:
            seconds = timed(lambda: sum(len(batch[1]) for batch in loader))
        return int(arguments.count) / seconds

    rates: dict[str, list[float]] = {}
    with object_server() as server:
        server.add(folder, "photos/")
        server.set(latency_s=LATENCY_S, bandwidth=BANDWIDTH)
        url = server.url + "/photos"
        how: dict[str, Any] = {"storage_options": server.options}
        for turn in range(arguments.rounds + 1):
            found: dict[str, float] = {}
            with empty_cache_home():
                found["local folder, first epoch"] = epoch(fastio.open(folder))
            with empty_cache_home():
                with fastio.open(url, **how) as dataset:
                    found["loader, no cache"] = epoch(dataset)
                with fastio.open(url, **how) as dataset:
                    found["later run without a cache (indexes kept)"] = epoch(dataset)
            shutil.rmtree(work / "cache", ignore_errors=True)
            with empty_cache_home(), fastio.Cache(work / "cache", pack="never") as cache:
                with fastio.open(url, cache=cache, **how) as dataset:
                    found["loader, first epoch with a cache"] = epoch(dataset)
                with fastio.open(url, cache=cache, **how) as dataset:
                    found["loader, later epoch with a cache"] = epoch(dataset)
            if turn:
                for name, rate in found.items():
                    rates.setdefault(name, []).append(rate)
    limit = BANDWIDTH / mean
    table = new_table(f"{mean / 1e3:.1f} KB a photo", "photos/s: best (worst)", "of the bandwidth")
    for name, each in rates.items():
        table.add_row(name, best(each), f"{max(each) / limit:.2f}")
    console().print(table)
    return {"photos_per_s": rates, "bandwidth": limit}


PARTS = {"ray": ray_part, "dataset": dataset_part, "urls": urls_part}


def main() -> None:
    """Measures the parts that are asked for."""
    parser = photo_parser(__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="(all)")
    parser.add_argument("--count", type=int, default=2000, help="photos or samples (2000)")
    parser.add_argument("--units", type=int, default=1000, help="tiny units on Ray (1000)")
    parser.add_argument("--rounds", type=int, default=2, help="of each measurement (2)")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    with temporary_folder() as work:
        files = source_photos(arguments, work)
        console().print(f"{machine_line()}; {about_photos(files, arguments.held_out)}")
        for name in arguments.part or PARTS:
            result[name] = PARTS[name](arguments, files, work / name)
            shutil.rmtree(work / name, ignore_errors=True)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
