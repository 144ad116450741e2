"""A ladder: the same training again and again, each time with one trick more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fastio.diagnose.bench.baseline import image_folder
from fastio.diagnose.bench.compute import model_device
from fastio.diagnose.bench.models import check_image_model
from fastio.diagnose.bench.options import BenchError, Options
from fastio.diagnose.bench.recipes import BATCH_SIZE, Packed, Recipe, recipes
from fastio.diagnose.bench.runs import Progress
from fastio.diagnose.bench.training import check_classes
from fastio.diagnose.report import Rung
from fastio.pack import pack
from fastio.runtime.cores import available_cores

_READ = 1 << 20
_ERROR_LINES = 12
_END_S = 10.0  # that an interrupted rung has to end its own processes


def ladder(options: Options, progress: Progress = lambda _: None) -> list[Rung]:
    """Trains once per rung, each in its own processes, with all data in the page cache.

    Args:
        options: data is an image folder; model, epochs (at least one), size, batch_size, val and
            seed count too. Packed data goes to `work`, and is kept there.
        progress: gets a few words before each rung.

    Raises:
        BenchError: the data is no image folder or less than a batch, `work` is within it, there
            is no model or no device, or a training failed.
        FastioError: the images cannot be packed.
    """
    folder = Path(str(options.data))
    if not folder.is_dir() or not any(entry.is_dir() for entry in folder.iterdir()):
        raise BenchError(
            f"a ladder begins with DataLoader on an image folder, and {folder} is none"
        )
    _check(folder, options)
    device = model_device(options)
    with _folder(options.work) as work:
        progress("packing")
        packed = Packed(_packed(folder, work, "jpeg"), _packed(folder, work, "blocks"))
        found = recipes(options, packed, device, available_cores())
        rungs = []
        for number, recipe in enumerate(found, 1):
            if recipe.why_not:
                rungs.append(Rung(recipe.name, shown=False, why_not=recipe.why_not))
                continue
            progress(f"rung {number} of {len(found)}: {recipe.name}")
            rungs.append(_measured(recipe))
    return rungs


def _check(folder: Path, options: Options) -> None:
    """Raises an error for options that no rung could train with.

    Raises:
        BenchError: there is no such model, there is less than a batch, the images to evaluate on
            are not there or of other classes, or packed data would become a class.
    """
    check_image_model(options)
    if options.amp or options.compile or options.channels_last:
        raise BenchError("a ladder has rungs for amp, compile and channels_last: leave them out")
    images = image_folder(str(folder))
    batch_size = options.batch_size or BATCH_SIZE
    if len(images) < batch_size:
        raise BenchError(
            f"a ladder trains on full batches, and {folder} has {len(images)} of the {batch_size} "
            f"images that one takes: give a --batch-size of at most {len(images)}"
        )
    if options.val is not None:
        val = image_folder(options.val)
        check_classes(str(folder), images.schema.classes, options.val, val.schema.classes)
    if options.work is not None and Path(options.work).resolve().is_relative_to(folder.resolve()):
        raise BenchError(
            f"--work {options.work} is within {folder}, where its folders would be classes: "
            "choose another place"
        )


@contextmanager
def _folder(work: str | None) -> Iterator[Path]:
    if work is not None:
        Path(work).mkdir(parents=True, exist_ok=True)
        yield Path(work)
        return
    folder = Path(tempfile.mkdtemp(prefix="fastio-ladder-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _packed(folder: Path, work: Path, codec: Literal["jpeg", "blocks"]) -> str:
    """Packs the folder with a codec, replacing the result of an earlier run."""
    target = work / f"ladder-{codec}"
    pack(folder, target, codec=codec, overwrite=True)
    return str(target)


def _measured(recipe: Recipe) -> Rung:
    """Trains a rung in its own processes and returns the result.

    Raises:
        BenchError: they failed; its last lines say why.
    """
    read_whole(recipe.training.data)
    command = [sys.executable, "-m"]
    if recipe.processes > 1:
        command += ["torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={recipe.processes}", "-m"]
    with tempfile.TemporaryDirectory(prefix="fastio-rung-") as folder:
        asked, answered = Path(folder, "recipe.json"), Path(folder, "result.json")
        recipe.write(asked)
        command += ["fastio.diagnose.bench.rung", str(asked), str(answered)]
        status, told = _run(command, _environment(recipe))
        if status or not answered.exists():
            lines = told.strip().splitlines()[-_ERROR_LINES:]
            raise BenchError(f"the rung {recipe.name!r} failed: " + "\n".join(lines))
        result = json.loads(answered.read_text())
    return Rung(recipe.name, result["epoch_s"], result["accuracy"])


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Returns the exit status and the output of a process; an interrupt ends the process, too."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, errors = process.communicate()
        except BaseException:
            process.terminate()  # torchrun ends those that it started, which SIGKILL would leave
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return process.returncode, errors or out


def _environment(recipe: Recipe) -> dict[str, str]:
    """Returns the environment of a process, which computes with its share of the cores."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    threads = max(1, available_cores() // recipe.processes)
    return {"OMP_NUM_THREADS": str(threads), **environment}


def read_whole(data: str) -> None:
    """Reads all files into the page cache, so that no rung waits for the disk."""
    for path in sorted(Path(data).rglob("*")):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(_READ):
                    pass
