"""A ladder: the same training again and again, each time with one optimisation more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from fastio.diagnose.bench.baseline import image_folder
from fastio.diagnose.bench.compute import model_device
from fastio.diagnose.bench.runs import Progress
from fastio.diagnose.bench.subject import check_model, work_folder
from fastio.diagnose.bench.training import check_classes
from fastio.diagnose.imagesteps import ImageSteps
from fastio.diagnose.measured import Rung
from fastio.diagnose.options import Options, check_used
from fastio.errors import BenchError, OptionError
from fastio.pack import pack
from fastio.runtime.cores import available_cores
from fastio.train import Options as TrainOptions
from fastio.transforms import RandomErasing, TrivialAugmentWide

_USED = (
    "data",
    "model",
    "epochs",
    "val",
    "size",
    "batch_size",
    "pipeline",
    "device",
    "work",
    "seed",
)
BATCH_SIZE = 64  # samples per step of all processes together


@dataclass(frozen=True)
class Recipe:
    """One training of a ladder. All start with the same weights and read the same images.

    Attributes:
        name: the optimisation that this recipe adds to the one before.
        training: options of the training: data, batch size of all processes together, precision
            and so on. `threads` is the number of worker processes of the DataLoader, or of threads
            of the Loader.
        model: name of an image model of fastio.train, or "module:function".
        size: height and width of cropped images, in pixels.
        why_not: why this machine cannot train it; "" if it can.
        torch_loader: whether torch's DataLoader and Pillow load the images; else the Loader does.
        pin_memory: whether batches are put in pinned memory and copied asynchronously.
        prefetch: whether the Loader copies batches to the device ahead of the step.
        processes: number of processes of DistributedDataParallel; 1 does not use it.
        full: whether to add the augmentation of a full recipe: `pipeline` or, if that is None,
            TrivialAugmentWide and RandomErasing.
        pipeline: the transforms of the full recipe as "module:name", or None.
    """

    name: str
    training: TrainOptions
    model: str
    size: int
    why_not: str = ""
    torch_loader: bool = True
    pin_memory: bool = False
    prefetch: bool = False
    processes: int = 1
    full: bool = False
    pipeline: str | None = None

    @property
    def transforms(self) -> list[Any]:
        """The transforms of the Loader, which give normalised float32 images."""
        if self.full and self.pipeline is not None:
            return list(ImageSteps.named(self.pipeline, normalized=True).native)
        crop, flip, normalize = ImageSteps.usual(self.size, normalized=True).native
        if not self.full:
            return [crop, flip, normalize]
        return [crop, flip, TrivialAugmentWide(), normalize, RandomErasing(0.1)]

    def write(self, path: Path) -> None:
        """Writes a file that `read` reads."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str) -> Recipe:
        """Reads the recipe in a file."""
        values = json.loads(Path(path).read_text())
        return cls(**(values | {"training": TrainOptions(**values["training"])}))


def recipes(
    options: Options, packed: Mapping[str, str], device: torch.device, cores: int
) -> list[Recipe]:
    """Returns the rungs; each includes all rungs before it that this machine can show.

    Args:
        options: options of the bench, whose data is an image folder.
        packed: for each codec, the folder of the same images packed with it.
        device: device of the model.
        cores: number of cores that the trainings may use.

    Raises:
        OptionError: there is no model.
    """
    if options.model is None:
        raise OptionError("a ladder needs model: give model= as well")
    epochs = max(1, options.epochs)
    training = TrainOptions(
        data=str(options.data),
        val=options.val or str(options.data),
        epochs=epochs,
        warmup=0.3 * epochs,
        batch_size=options.batch_size or BATCH_SIZE,
        device=str(device),
        seed=options.seed,
    )
    no_gpu = "" if device.type == "cuda" else "there is no GPU to copy to"
    # Name, what changes of the recipe and of its training, why it cannot be shown.
    rungs: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        (f"workers = {cores}", {}, {"threads": cores}, ""),
        ("pin_memory", {"pin_memory": True}, {}, no_gpu),
        ("fastio, the same folder", {"torch_loader": False, "pin_memory": False}, {}, ""),
        ("packed, JPEG kept", {}, {"data": packed["jpeg"]}, ""),
        ("packed as blocks", {}, {"data": packed["blocks"]}, ""),
        ("device prefetch", {"prefetch": True}, {}, no_gpu),
        ("autocast bf16", {}, {"amp": "bf16"}, _no_bfloat16(device)),
        ("torch.compile", {}, {"compile": True}, _no_compiler(device)),
        ("channels_last", {}, {"channels_last": True}, ""),
        ("DDP, 2 processes", {"processes": 2}, {}, _no_second(device, cores, training.batch_size)),
        ("full recipe: augmentation", {"full": True, "pipeline": options.pipeline}, {}, ""),
    ]
    found = [Recipe("DataLoader, 0 workers", training, options.model, options.size)]
    current = found[0]
    for name, changes, changed, why_not in rungs:
        trained = replace(current.training, **changed)
        found.append(replace(current, name=name, why_not=why_not, training=trained, **changes))
        # Later rungs do not have the changes of a rung that this machine cannot run.
        if not why_not:
            current = found[-1]
    return found


def _no_bfloat16(device: torch.device) -> str:
    if device.type == "cuda":
        return "" if torch.cuda.is_bf16_supported() else "this GPU has no bfloat16"
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if any(getattr(torch.cpu, test, bool)() for test in tests):
        return ""
    return "this processor has no instructions for bfloat16: it would be slower"


def _no_compiler(device: torch.device) -> str:
    if device.type == "cuda":
        if find_spec("triton") is None:
            return "triton, which compiles for GPUs, is not installed"
        # It compiles a few lines of C that launch each kernel.
        there = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        return "" if there else "there is no C compiler (gcc)"
    compiler = os.environ.get("CXX", "g++")
    return "" if shutil.which(compiler) else f"there is no C++ compiler ({compiler})"


def _no_second(device: torch.device, cores: int, batch_size: int) -> str:
    if batch_size % 2:
        return f"batches of {batch_size} cannot be shared by two processes"
    if device.type == "cuda":
        return "" if torch.cuda.device_count() > 1 else "there is one GPU"
    return "" if cores > 1 else "there is one core"


# --- Training the rungs ---------------------------------------------------------------------------

_READ = 1 << 20
_ERROR_LINES = 12
_END_S = 10.0  # time that an interrupted rung has to end its own processes


def ladder(options: Options, progress: Progress = lambda _: None) -> list[Rung]:
    """Trains once per rung, each in its own processes, with all data in the page cache.

    Args:
        options: options of the bench: `data`, an image folder, and `model`, `epochs` (at least
            one), `size`, `batch_size`, `val` and `seed`. Packed data is written to `work` and kept
            there.
        progress: called before each rung, with a description of it in a few words.

    Raises:
        OptionError: there is no such model or device, or an option does not apply to a ladder.
        BenchError: the data is not an image folder or has less than a batch, or a training failed.
        FastioError: the images cannot be packed.
    """
    folder = Path(str(options.data))
    if not folder.is_dir() or not any(entry.is_dir() for entry in folder.iterdir()):
        raise BenchError(
            f"a ladder starts with DataLoader on an image folder, and {folder} is not one"
        )
    _check(folder, options)
    device = model_device(options)
    with work_folder(options) as work:
        progress("packing")
        codecs: tuple[Literal["jpeg", "blocks"], ...] = ("jpeg", "blocks")
        packed: dict[str, str] = {codec: str(work / f"ladder-{codec}") for codec in codecs}
        for codec in codecs:  # in place of the result of an earlier run
            pack(folder, packed[codec], codec=codec, overwrite=True)
        found = recipes(options, packed, device, available_cores())
        rungs = []
        for number, recipe in enumerate(found, 1):
            if recipe.why_not:
                rungs.append(Rung(recipe.name, why_not=recipe.why_not))
                continue
            progress(f"rung {number} of {len(found)}: {recipe.name}")
            rungs.append(_measured(recipe))
    return rungs


def _check(folder: Path, options: Options) -> None:
    """Raises an error for options that no rung could train with.

    Raises:
        OptionError: there is no such model, an option has a rung of its own, or packed data would
            become a class.
        BenchError: the data has less than a batch, or the images to evaluate on are not there or of
            other classes.
    """
    check_model(options, "images")
    if options.amp or options.compile or options.channels_last:
        raise OptionError(
            "a ladder has its own steps for amp, compile and channels_last: leave these options out"
        )
    check_used(options, _USED, f"is not used by a ladder, but only {', '.join(_USED)}")
    images = image_folder(str(folder))
    batch_size = options.batch_size or BATCH_SIZE
    if len(images) < batch_size:
        raise BenchError(
            f"a ladder trains on full batches, but {folder} has only {len(images)} images and "
            f"the batch size is {batch_size}: use a --batch-size of at most {len(images)}"
        )
    if options.val is not None:
        val = image_folder(options.val)
        check_classes(str(folder), images.schema.classes, options.val, val.schema.classes)
    if options.work is not None and Path(options.work).resolve().is_relative_to(folder.resolve()):
        raise OptionError(
            f"--work {options.work} is within {folder}, where its folders would become "
            "classes: choose another folder"
        )


def _measured(recipe: Recipe) -> Rung:
    """Trains a rung in its own processes and returns the result.

    Raises:
        BenchError: they failed; its last lines say why.
    """
    # The files are read first, because the first rung that reads them would otherwise be slower.
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
        return Rung(**json.loads(answered.read_text()))


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
    # By default, torchrun gives each process one thread for operators.
    threads = max(1, available_cores() // recipe.processes)
    return {"OMP_NUM_THREADS": str(threads), **environment}


def read_whole(data: str) -> None:
    """Reads all files into the page cache, so that no rung waits for the disk."""
    for path in sorted(Path(data).rglob("*")):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(_READ):
                    pass
