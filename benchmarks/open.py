"""Opening a dataset: milliseconds from the path to a row's place, however large the manifest.

    .venv/bin/python benchmarks/open.py [--rounds 9] [--shards MOST]

Manifests are synthetic: no shard is behind them. Each is opened in this process, mapped anew every
round, and asked where its last row lies.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import fastio
from fastio.packed import MANIFEST_NAME
from fastio.packed.manifest_writer import manifest_batch
from fastio.packed.shard_writer import write_sealed
from fastio.schema import CODEC_NAMES, Schema

SCHEMA = Schema({"image": fastio.Image(), "label": fastio.Scalar("int64")}, "tuple", ("a", "b"))


def write_synthetic(folder: Path, shards: int, rows: int) -> None:
    """A manifest of `shards` shards with `rows` rows in total, made without loops."""
    each = np.full(shards, rows // shards, np.int64)
    each[: rows % shards] += 1
    hashes = pa.array(["0123456789abcdef"] * shards, pa.large_utf8())
    columns = {
        "name": pa.array([f"shard-{i:06}.arrow" for i in range(shards)], pa.large_utf8()),
        "rows": pa.array(each),
        "bytes": pa.array(each * 110_000),
        **dict.fromkeys(("xxh3", "head_xxh3", "columns_xxh3"), hashes),
        **dict.fromkeys(("head_bytes", "foot_bytes"), pa.array(np.full(shards, 4096))),
        "image.offset": pa.array(np.full(shards, 8192)),
        "image.bytes": pa.array(each * 90_000),
    }
    for codec in CODEC_NAMES:
        columns[f"image.{codec}"] = pa.array(each if codec == "jpeg" else np.zeros_like(each))
    write_sealed(folder / MANIFEST_NAME, manifest_batch(SCHEMA, {}, columns))


def open_ms(folder: Path, rounds: int) -> list[float]:
    """Milliseconds to open the dataset and locate its last row, round by round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        with fastio.open(folder) as dataset:
            assert isinstance(dataset, fastio.Dataset)
            dataset.locate(np.array([len(dataset) - 1]))
        times.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shards", type=int, help="leave out manifests of more (none)")
    arguments = parser.parse_args()
    table = Table(title="Opening a manifest", title_justify="left")
    for name in ("rows", "shards", "manifest MB", "first ms", "median ms"):
        table.add_column(name, justify="right")
    for rows, shards in (
        (1_281_167, 2_200),
        (10_000_000, 17_200),
        (10_000_000, 1_000_000),
        (10_000_000, 10_000_000),
        (1_000_000_000, 1_720_000),
    ):
        if arguments.shards is not None and shards > arguments.shards:
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_synthetic(Path(folder), shards, rows)
            size = (Path(folder) / MANIFEST_NAME).stat().st_size
            times = open_ms(Path(folder), arguments.rounds)
        median = statistics.median(times)
        cells = f"{rows:,}", f"{shards:,}", f"{size / 1e6:,.1f}", f"{times[0]:.2f}", f"{median:.2f}"
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    main()
