"""What the benchmarks share: which photos, which machine, which instruction sets.

Every script takes a folder of photos, one folder a class in it; without one, photos are made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from fastio import _native
from fastio.diagnose.probes.machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
# side_by_side and make_images lie there; this module is imported before them.
sys.path.insert(0, str(ROOT / "tools"))

from make_images import make_images  # noqa: E402

CODEBOOK = ROOT / "fastio" / "packed" / "codebook.bin"

_PAUSE_S = 1.0

# How much smaller a crop becomes, along the axis that shrinks less.
SHRINKS = {"below 1": 0, "1 to 2": 1, "2 to 4": 2, "4 to 8": 4, "8 and more": 8}


def shrink_name(shrink: float) -> str:
    """The range of SHRINKS that it is in."""
    return [name for name, least in SHRINKS.items() if shrink >= least][-1]


# --- The command line -----------------------------------------------------------------------------


def photo_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks take; `description` is a module's docstring."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="photos in class folders (made)")
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="of the sorted photos, only those with an odd number, counting from 0",
    )
    parser.add_argument("--json", type=Path, help="write all figures there")
    return parser


def console() -> Console:
    """Prints figures; into a file, lines of a width that holds the tables."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=160)


def new_table(*heads: str) -> Table:
    """A table of names, on the left, and figures, of which a narrow terminal cuts none off."""
    table = Table()
    for index, head in enumerate(heads):
        side: Literal["left", "right"] = "right" if index else "left"
        table.add_column(head, justify=side, no_wrap=index == 0, overflow="fold")
    return table


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Writes the figures where --json says."""
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")


# --- Photos ---------------------------------------------------------------------------------------


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="fastio-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def source_photos(arguments: argparse.Namespace, work: Path) -> list[Path]:
    """The photos to measure with, sorted; made in `work` where no folder was given."""
    folder = arguments.folder
    if folder is None:
        folder = work / "made"
        make_images(folder, count=500, classes=10, seed=0)
    files = [path for path in sorted(folder.glob("*/*")) if path.is_file()]
    if arguments.held_out:
        files = files[1::2]
    if not files:
        sys.exit(f"{folder} has no subfolders with images")
    return files


def about_photos(files: Sequence[Path], held_out: bool) -> str:
    """A line about the photos, which says whether the default codebook knows them."""
    mean = sum(path.stat().st_size for path in files) / len(files)
    which = (
        "every second photo of the folder, numbers 1, 3, 5, ...: where the default codebook was "
        "trained on this folder, it was on the others"
        if held_out
        else "all photos of the folder, also those that a codebook may have been trained on"
    )
    return f"{len(files)} photos of {mean / 1e3:.1f} KB on average ({which})"


def linked(files: Sequence[Path], count: int, target: Path) -> Path:
    """An image folder of `count` links to the files, which repeat if need be."""
    for index in range(count):
        source = files[index % len(files)]
        link = target / source.parent.name / f"{index // len(files):05}-{source.name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.resolve())
    return target


def copied(files: Sequence[Path], count: int, target: Path) -> Path:
    """An image folder of `count` copies of the files, each with its number behind the image.

    So no two files have the same bytes: fastio finds what it keeps of a JPEG by its bytes.
    """
    for index in range(count):
        source = files[index % len(files)]
        path = target / source.parent.name / f"{index // len(files):05}-{source.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.read_bytes() + index.to_bytes(4, "little"))
    return target


@contextmanager
def empty_cache_home() -> Iterator[Path]:
    """Sets XDG_CACHE_HOME to an empty folder: what fastio keeps of JPEG files lies there."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        try:
            yield Path(home)
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


# --- Native programs ------------------------------------------------------------------------------


def native_program(name: str, folder: Path, source: Path = ROOT) -> Path:
    """Builds the program native/bench/NAME.cpp of a checkout in `folder`, and returns its path."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    options = ["-G", "Ninja", "-DFASTIO_MODULE=OFF", "-DFASTIO_BENCH=ON"]
    program = folder / f"fastio_bench_{name}"
    for command in (
        ["cmake", "-S", str(source / "native"), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "--target", program.name],
    ):
        done = subprocess.run(
            command, env={**os.environ, "PATH": tools}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return program


# --- The machine ----------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """What the figures are measured on."""
    return {
        "cpu": cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "simd": simd_levels()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def machine_line() -> str:
    """The same, to print."""
    m = machine()
    return f"{m['cpu']}, {m['cores']} cores, {m['simd']}"


def let_others_end() -> None:
    """Waits until what loaders prefetch after their last batch is done, so that it disturbs none.

    DataLoader's workers and DALI's threads go on for some batches after an epoch was left.
    """
    time.sleep(_PAUSE_S)


def simd_levels() -> list[str]:
    """The instruction sets of this machine that the kernels know, best first."""
    return _native.simd_levels()[::-1]


@contextmanager
def forced(level: str) -> Iterator[None]:
    """The kernels use `level`; the best again afterwards."""
    _native.simd_force(level)
    try:
        yield
    finally:
        _native.simd_force(simd_levels()[0])


def resident_mb() -> float:
    """Memory that this process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@contextmanager
def one_core() -> Iterator[None]:
    """This process, with all threads that are started meanwhile, stays on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
