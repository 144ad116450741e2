"""One loader, in a process and an environment of its own: prepares its data, or measures it.

    python runner.py prepare MODULE VARIANT PHOTOS TARGET
    python runner.py measure MODULE VARIANT DATA --batch N --threads N --package NAME --out FILE
        [--first]

`measure` runs an epoch to warm up, which is checked: shape and type of the batches, number of
images. Then one is timed, from the request for an iterator to the last batch, or with --first the
one before it. Written as JSON: `images`, `seconds`, `cpu_s` (processor time of this process and
those that it started), `memory_mb` (what they hold after ten batches of the epoch to warm up,
mapped files not counted) and the package's `version`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from work import SIZE, Runner, Settings

# --- This process and those below it --------------------------------------------------------------

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(process: Path) -> list[str]:
    """The fields of /proc/N/stat from the third on: the second, a name, may hold anything."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _family() -> list[Path]:
    """/proc/N of this process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents.setdefault(int(_stat(process)[1]), []).append(int(process.name))
        except OSError:  # it has ended meanwhile
            continue
    found = [os.getpid()]
    for one in found:
        found += parents.get(one, [])
    return [Path("/proc") / str(one) for one in found]


def _cpu_s() -> float:
    """Processor time of the family, those that ended and were waited for included."""
    return sum(int(ticks) for process in _family() for ticks in _stat(process)[11:15]) / _TICKS


def _memory_mb() -> float:
    """Memory of the family that is no file's: pages shared by several count once."""
    kilobytes = 0
    for process in _family():
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                kilobytes += int(line.split()[1])
    return kilobytes * 1024 / 1e6


# --- Epochs ---------------------------------------------------------------------------------------


def _warm_up(loader: Iterable[Any]) -> tuple[int, float]:
    """Images of an epoch, all of the right form, and the memory held in the middle of it."""
    images, memory = 0, 0.0
    for step, (batch, labels) in enumerate(loader):
        if batch.shape[1:] != (3, SIZE, SIZE) or batch.dtype != torch.float32:
            raise SystemExit(f"images are {batch.dtype} {tuple(batch.shape)}")
        if len(labels) != len(batch) or not -5 < float(batch[0].mean()) < 5:
            raise SystemExit(f"{len(labels)} labels, {len(batch)} images, or not normalised")
        images += len(batch)
        if step == 10:
            memory = _memory_mb()
    return images, memory


def _timed(loader: Iterable[Any]) -> dict[str, float]:
    """Images, seconds and processor time of an epoch."""
    cpu, start = _cpu_s(), time.perf_counter()
    images = 0
    for batch, _ in loader:
        images += len(batch)
    seconds = time.perf_counter() - start
    return {"images": images, "seconds": seconds, "cpu_s": _cpu_s() - cpu}


def _measure(runner: Runner, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(arguments.variant, arguments.batch, arguments.threads)
    loader = runner.open_loader(arguments.source, settings)
    figures = _timed(loader) if arguments.first else {}
    images, memory = _warm_up(loader)
    figures = figures or _timed(loader)
    if figures["images"] != images:
        raise SystemExit(f"epochs of {images} and of {figures['images']} images")
    return {**figures, "memory_mb": memory, "version": version(arguments.package)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=["prepare", "measure"])
    parser.add_argument("module")
    parser.add_argument("variant")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", nargs="?", type=Path)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--package", default="torch")
    parser.add_argument("--first", action="store_true", help="time the first epoch")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runner = cast(Runner, importlib.import_module(arguments.module))
    if arguments.task == "prepare":
        runner.prepare(arguments.source, arguments.target, arguments.variant)
    else:
        figures = _measure(runner, arguments)
        arguments.out.write_text(json.dumps(figures))
    # Some loaders' threads outlive them.
    os._exit(0)


if __name__ == "__main__":
    main()
