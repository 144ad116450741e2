"""Images a second of fastio and of other loaders that do the same work, each as its makers advise.

    tools/peers   # environments of the others; those that do not install here are left out
    .venv/bin/python benchmarks/peers.py [FOLDER] [--images 10000] [--rounds 3] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. What is the same for all:

Work. Rows in random order, RandomResizedCrop(224) of 8 to 100% of the area and 3/4 to 4/3 of its
sides, a flip, batches of float32 (N, 3, 224, 224), normalised: as a CPU or a GPU without a loader's
help would take them. Whole epochs, the last batch too.

Photos. `--images` files that are the photos copied as often as needed, each with its number behind
the image, so that no two files are the same. Loaders with a format of their own get it from these
files' bytes; FFCV, which keeps none, from its own JPEGs. The table says how large the result is.
All of it is in the page cache.

Cores. As many as `--threads`, two, for everything: the consumer, worker processes, threads.

Settings. What each one's documentation or example for ImageNet recommends; the runner in peers/
says which. Where decoding is the user's (torch's DataLoader, WebDataset, MosaicML Streaming,
Hugging Face datasets), torchvision's decoder and transforms on tensors do it, which are the fastest
that their documents name; LitData decodes so by itself.

Pixels. All filter before they shrink (antialias): bilinear or triangular, FFCV by area. Where a
decoder can skip what a crop does not need or decode at a part of the size, it may: that is what it
is for. DALI decodes no more than the crop, FFCV and fastio at a part of the size where a crop
shrinks much.

Time. Each figure is of a process of its own, which runs a full epoch to warm up and then a timed
one; fastio's first epoch of an image folder, which is slower than later ones, is timed without
warming up. A round measures every loader once, so that a machine whose speed drifts does it to all
alike. The table has medians of rounds. `--seconds` ends the run before a measurement that would
begin later, and the next run goes on from the JSON file; `--report` only shows what that has.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from common import ROOT, console, copied, empty_cache_home, machine
from make_images import make_images
from peers_report import draw, report

PEERS = ROOT / "benchmarks" / "peers"
BUILD = ROOT / "build" / "peers"


@dataclass(frozen=True)
class Loader:
    """A way to load: a runner in peers/, one of its variants, and the environment that it runs in.

    An environment of None is this one, of fastio.
    """

    name: str
    environment: str | None
    module: str
    variant: str
    package: str
    packs: bool = True
    first: bool = False  # the first epoch is timed

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        if self.environment is None:
            return Path(sys.executable)
        return BUILD / self.environment / "bin" / "python"

    def is_installed(self) -> bool:
        return self.environment is None or (BUILD / self.environment / "fastio-peer").exists()

    def data(self, work: Path) -> Path:
        """The folder that it reads."""
        return work / f"{self.module}-{self.variant}" if self.packs else work / "photos"


LOADERS = (
    Loader("DataLoader, Pillow", "torchvision", "plain", "pillow", "torch", packs=False),
    Loader(
        "DataLoader, torchvision tensors",
        "torchvision",
        "plain",
        "tensors",
        "torchvision",
        packs=False,
    ),
    Loader("Hugging Face datasets", "huggingface", "hugging_face", "arrow", "datasets"),
    Loader("WebDataset", "webdataset", "web_dataset", "tar", "webdataset"),
    Loader("MosaicML Streaming", "mosaicml", "mosaic", "mds", "mosaicml-streaming"),
    Loader("LitData", "litdata", "lit_data", "chunks", "litdata"),
    Loader("SPDL", "spdl", "spdl_pipeline", "files", "spdl-io", packs=False),
    Loader("DALI, CPU", "dali", "dali", "files", "nvidia-dali-cuda120", packs=False),
    Loader("FFCV, JPEG", "ffcv", "ffcv_beton", "jpeg", "ffcv"),
    Loader("FFCV, ImageNet recipe, 50% raw", "ffcv", "ffcv_beton", "recipe", "ffcv"),
    Loader(
        "fastio, image folder, first epoch",
        None,
        "fastio_loader",
        "folder",
        "fastio",
        packs=False,
        first=True,
    ),
    Loader(
        "fastio, image folder, later epochs",
        None,
        "fastio_loader",
        "folder",
        "fastio",
        packs=False,
    ),
    Loader("fastio, image folder with a cache, recoded", None, "fastio_loader", "cache", "fastio"),
    Loader("fastio, packed, jpeg", None, "fastio_loader", "jpeg", "fastio"),
    Loader("fastio, packed, blocks", None, "fastio_loader", "blocks", "fastio"),
)

# --- What is measured -----------------------------------------------------------------------------


def photos(folder: Path | None, count: int, work: Path) -> Path:
    """The image folder of `count` photos that all loaders get, made where it is not there."""
    target = work / "photos"
    if target.exists():
        return target
    if folder is None:
        folder = work / "made"
        make_images(folder, count=500, classes=10, seed=0)
    suffixes = {".jpg", ".jpeg"}
    files = [path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in suffixes]
    if not files:
        sys.exit(f"{folder} has no folders with JPEGs")
    unfinished = target.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    copied(files, count, unfinished).rename(target)
    return target


def run(loader: Loader, threads: int, *arguments: object) -> None:
    """Runs a runner on `threads` cores.

    Raises:
        RuntimeError: it failed; the message is the last of what it wrote.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    command = ["taskset", "-c", ",".join(map(str, cores)), loader.python, PEERS / "runner.py"]
    done = subprocess.run(
        [str(part) for part in (*command, *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"{loader.name}: {lines[-1]}\n" + "\n".join(lines[-15:]))


def prepare(loader: Loader, source: Path, work: Path, threads: int) -> None:
    """Writes the loader's own format, unless it has none or it is there."""
    target = loader.data(work)
    if not loader.packs or target.exists():
        return
    unfinished = target.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    run(loader, threads, "prepare", loader.module, loader.variant, source, unfinished)
    unfinished.rename(target)


def measure(loader: Loader, work: Path, settings: dict[str, int]) -> dict[str, Any]:
    """Figures of an epoch, as peers/runner.py says; `data_bytes` is what lies in its folder.

    Raises:
        RuntimeError: the runner failed, or its epoch was not all the photos.
    """
    data = loader.data(work)
    files = [path for path in data.rglob("*") if path.is_file()]
    data_bytes = sum(path.stat().st_size for path in files)
    for path in files:  # into the page cache
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    out = work / "figures.json"
    out.unlink(missing_ok=True)
    with empty_cache_home():
        run(
            loader,
            settings["threads"],
            *("measure", loader.module, loader.variant, data, "--batch", settings["batch"]),
            *("--threads", settings["threads"], "--package", loader.package, "--out", out),
            *(["--first"] if loader.first else []),
        )
    figures: dict[str, Any] = json.loads(out.read_text())
    if figures["images"] != settings["images"]:
        raise RuntimeError(f"{loader.name}: an epoch has {figures['images']} images")
    return {**figures, "data_bytes": data_bytes}


# --- Rounds ---------------------------------------------------------------------------------------


def missing(result: dict[str, Any], loaders: Sequence[Loader], rounds: int) -> Iterator[Loader]:
    """Loaders in the order in which they are still to be measured: round by round."""
    for number in range(rounds):
        for loader in loaders:
            if len(result["epochs"].get(loader.name, [])) <= number:
                yield loader


def load(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The result so far; an empty one where there is none.

    Raises:
        SystemExit: it was measured in another way.
    """
    if not path.exists():
        about = {"date": date.today().isoformat(), "machine": machine()}
        return {**about, "settings": settings, "epochs": {}, "not_measured": {}}
    result: dict[str, Any] = json.loads(path.read_text())
    if result["settings"] != settings:
        sys.exit(f"{path} has figures of other settings: {result['settings']}. Move it away.")
    return result


def save(path: Path, result: dict[str, Any]) -> None:
    order = [loader.name for loader in LOADERS]
    result["epochs"] = dict(sorted(result["epochs"].items(), key=lambda item: order.index(item[0])))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def measure_all(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Measures what is missing, and writes the file after each."""
    end = time.monotonic() + arguments.seconds
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    source = photos(arguments.folder, arguments.images, work)
    ready = []
    for loader in LOADERS:
        if arguments.only and loader.module not in arguments.only:
            continue
        result["not_measured"].pop(loader.name, None)
        if loader.is_installed():
            ready.append(loader)
        else:
            result["not_measured"][loader.name] = "not installed: see tools/peers"
    save(arguments.json, result)
    for loader in ready if arguments.prepare else missing(result, ready, arguments.rounds):
        if time.monotonic() > end:
            break
        if loader.name in result["not_measured"]:
            continue
        try:
            prepare(loader, source, work, arguments.threads)
            if not arguments.prepare:
                figures = measure(loader, work, result["settings"])
                result["epochs"].setdefault(loader.name, []).append(figures)
                rate = figures["images"] / figures["seconds"]
                console().print(f"{loader.name}: {rate:,.0f} images/s")
        except RuntimeError as error:
            result["not_measured"][loader.name] = str(error)
        save(arguments.json, result)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="photos in class folders (made)")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="workers or threads, and cores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="these modules of peers/")
    parser.add_argument("--work", type=Path, default=BUILD / "data", help="for photos and formats")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "peers.json")
    parser.add_argument("--plot", type=Path, help="write bars to this .svg file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing later")
    parser.add_argument("--prepare", action="store_true", help="only write the formats")
    parser.add_argument("--report", action="store_true", help="only show what the JSON has")
    arguments = parser.parse_args()
    settings = {name: getattr(arguments, name) for name in ("images", "batch", "threads")}
    result = load(arguments.json, settings)
    if not arguments.report:
        measure_all(arguments, result)
    report(result)
    if arguments.plot:
        draw(result, arguments.plot)


if __name__ == "__main__":
    main()
