"""Every benchmark starts and finishes on small data; what it measures so says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from make_images import make_images

ROOT = Path(__file__).parent.parent
PHOTOS = "<photos>"  # in the place of a folder of photos

# By the script's name: what makes it small; several where it has several parts. A fifth of the rows
# of tables.py is more than a batch.
SMALL: dict[str, list[str]] = {
    "access order": ["order", "--rounds", "1"],
    "access cold": ["cold", "--rows", "120", "--rounds", "1"],
    "access folder": ["folder", "--files", "12", "--rounds", "1"],
    "access http": ["http", "--megabytes", "6", "--rounds", "1"],
    "access latency": ["latency", "--megabytes", "6"],
    "access budget": ["budget", "--megabytes", "60"],
    "accuracy": ["--count", "128", "--epochs", "1", "--seeds", "2", "--size", "32"],
    "accuracy recipes": [
        *("--recipes", "all", "--count", "64", "--epochs", "1", "--seeds", "2", "--size", "32"),
    ],
    "codec": [PHOTOS, "--rounds", "1", "--crops", "1"],
    "elsewhere": [PHOTOS, "--count", "40", "--rounds", "1", "--units", "8"],
    "images": [PHOTOS, "--count", "24", "--rounds", "1", "--pack-rounds", "1"],
    "in_memory": ["--rows", "600", "--table-rows", "5000", "--rounds", "1", "--most-s", "0.1"],
    "large": [PHOTOS, "--megapixels", "0.5", "--photos", "1", "--rows", "4", "--passes", "1"],
    "open": ["--rounds", "1", "--shards", "20000"],
    "parquet_direct": ["--rows", "40000", "--rounds", "1", "--memory", "4MiB"],
    "per_sample": [PHOTOS, "--rows", "24", "--rounds", "1", "--workers", "1"],
    "peers": [PHOTOS, "--images", "12", "--rounds", "1", "--only", "fastio_loader"],
    "pixels": ["--size", "128", "--rounds", "1", "--turns", "1"],
    "ranks": ["--ranks", "2", "--megabytes", "8", "--rounds", "1"],
    "quality": [PHOTOS, "--crops", "1", "--large", "0"],
    "table_images": [PHOTOS, "--count", "24", "--rounds", "1", "--alone"],
    "recoded": [PHOTOS, "--count", "24", "--rounds", "1"],
    "recipes": [PHOTOS, "--count", "24", "--slow", "12", "--rounds", "1", "--threads", "1"],
    "scale": ["--nodes", "1", "3", "--rows", "1e6", "--drawn", "4", "--steps", "4"],
    "swap": ["--batches", "2", "--rounds", "1"],
    "tables warm": ["warm", "--rows", "400000", "--rounds", "1"],
    "tables cold": ["cold", "--rows", "40000", "--rounds", "1"],
    "threads": [PHOTOS, "--load=mixed", "--seconds=0.1", "--turns=2", "--settle=1", "--threads=1"],
    "tokens": ["--tokens", "3000000", "--rounds", "1"],
}
# It judges whether predictions come true, which takes full measurements of a quiet machine.
NOT_SMALL = {"culprits"}
# These end with status 1 where fastio is slower, which small data do not tell.
JUDGES = {"swap": "slower than DataLoader: "}


def scripts() -> set[str]:
    """The benchmarks: what stands beside them are their parts."""
    found = (ROOT / "benchmarks").glob("*.py")
    return {path.stem for path in found if "__main__" in path.read_text()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("benchmarks") / "photos"
    make_images(folder, count=6, classes=2, seed=0)
    return folder


def test_every_benchmark_has_a_small_run() -> None:
    assert {name.split()[0] for name in SMALL} | NOT_SMALL == scripts()


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_starts_and_finishes(name: str, photos: Path, tmp_path: Path) -> None:
    script = name.split()[0]
    arguments = [str(photos) if given == PHOTOS else given for given in SMALL[name]]
    if script == "peers":
        arguments += ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "peers.json")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *arguments],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    judged = script in JUDGES and done.stderr.startswith(JUDGES[script])
    assert done.returncode == 0 or judged, done.stderr
    assert done.stdout.strip()
    assert "…" not in done.stdout  # figures that were cut off
