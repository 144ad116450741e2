"""The rungs of a ladder: how each trains, and which of them a machine can show."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fastio.diagnose.bench.options import BenchError, Options
from fastio.train import Options as TrainOptions

BATCH_SIZE = 64  # samples of a step, of all processes together


@dataclass(frozen=True)
class Recipe:
    """One training of a ladder. All start with the same weights and read the same images.

    Attributes:
        name: what is new.
        training: how it is trained: data, batch size of all processes together, precision, ...
            `threads` are processes of the DataLoader, or threads of the Loader.
        model: a name of fastio.train's models of images, or "module:function".
        size: images are cropped to, in pixels.
        why_not: why this machine cannot show it; "" where it can.
        torch_loader: torch's DataLoader and Pillow instead of this package's Loader.
        pin_memory: batches are put in pinned memory, and copied without waiting.
        prefetch: the Loader brings batches to the device ahead of the step.
        processes: of DistributedDataParallel; 1: none.
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

    def write(self, path: Path) -> None:
        """Writes a file that `read` reads."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str) -> Recipe:
        """Reads the recipe in a file."""
        values = json.loads(Path(path).read_text())
        return cls(**(values | {"training": TrainOptions(**values["training"])}))


@dataclass(frozen=True)
class Packed:
    """The folder's images, packed with both codecs."""

    jpeg: str
    blocks: str


def recipes(options: Options, packed: Packed, device: torch.device, cores: int) -> list[Recipe]:
    """Returns the rungs; each includes all rungs before it that this machine can show.

    Args:
        options: whose data is an image folder.
        packed: the same images.
        device: where the model is.
        cores: that may be used.

    Raises:
        BenchError: there is no model.
    """
    if options.model is None:
        raise BenchError("a ladder trains a model: give model= as well")
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
    plain = Recipe("DataLoader, 0 workers", training, options.model, options.size)
    return list(_climb(plain, packed, device, cores))


def _climb(plain: Recipe, packed: Packed, device: torch.device, cores: int) -> Iterator[Recipe]:
    no_gpu = "" if device.type == "cuda" else "there is no GPU to copy to"
    batch_size = plain.training.batch_size
    yield plain
    # Name, what changes of the recipe and of its training, why it cannot be shown.
    rungs: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        (f"workers = {cores}", {}, {"threads": cores}, ""),
        ("pin_memory", {"pin_memory": True}, {}, no_gpu),
        ("fastio, the same folder", {"torch_loader": False, "pin_memory": False}, {}, ""),
        ("packed, JPEG kept", {}, {"data": packed.jpeg}, ""),
        ("packed as blocks", {}, {"data": packed.blocks}, ""),
        ("device prefetch", {"prefetch": True}, {}, no_gpu),
        ("autocast bf16", {}, {"amp": "bf16"}, _no_bfloat16(device)),
        ("torch.compile", {}, {"compile": True}, _no_compiler(device)),
        ("channels_last", {}, {"channels_last": True}, ""),
        ("DDP, 2 processes", {"processes": 2}, {}, _no_second(device, cores, batch_size)),
    ]
    current = plain
    for name, changes, training, why_not in rungs:
        changed = replace(current.training, **training)
        following = replace(current, name=name, why_not=why_not, training=changed, **changes)
        if not why_not:
            current = following
        yield following


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
