"""Checkpoints: files that are written atomically, checked when they are read, and random states.

A checkpoint is what `torch.save` writes of a dictionary of tensors, numbers, strings and lists, so
that `torch.load(path, weights_only=True)` reads it. Its key "model" is a plain state_dict.
"""

from __future__ import annotations

import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

import fastio
from fastio.runtime.files import remove_leftovers, second_name, whole_file
from fastio.shown import finite

VERSION = 1
LAST, BEST, HISTORY = "last.pt", "best.pt", "history.json"


def save(content: Mapping[str, Any], path: Path) -> None:
    """Writes a checkpoint atomically: to a temporary name, which is flushed and renamed.

    Raises:
        CheckpointError: It cannot be written; the previous file is kept.
    """
    _publish(path, lambda file: torch.save({"version": VERSION, **content}, file))


def save_json(content: Any, path: Path) -> None:
    """Writes a JSON file atomically; numbers that are not finite become null."""
    text = json.dumps(finite(content), indent=1, allow_nan=False)
    _publish(path, lambda file: file.write(text.encode()))


def keep(path: Path, name: Path) -> None:
    """Gives a checkpoint a second name, atomically, which remains when the first one is replaced.

    Raises:
        CheckpointError: It cannot be written; the previous file of that name is kept.
    """
    try:
        second_name(path, name)
    except OSError:  # this file system has no second names
        content = path.read_bytes()
        _publish(name, lambda file: file.write(content))


def _publish(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    try:
        with whole_file(path) as file:
            write(file)
    # torch has errors of its own for those of the file that it writes to.
    except (OSError, RuntimeError) as error:
        raise fastio.CheckpointError(
            f"{path} cannot be written ({_cause(error)}); the previous file is kept"
        ) from error


def _cause(error: BaseException) -> str:
    """Returns the file system's error, because torch's message says less."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)


def check_folder(folder: Path, resume: bool) -> None:
    """Makes a folder for checkpoints if necessary, and checks that a file can be written there.

    Args:
        folder: Where checkpoints will be written.
        resume: Whether the run continues from the last one.

    Raises:
        TrainError: Nothing can be written there, or it has the checkpoint of a run that would be
            overwritten.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        remove_leftovers(folder)
        there = (folder / LAST).exists()
    except OSError as error:
        raise fastio.TrainError(
            f"checkpoint_dir={folder} cannot be written ({error.strerror}): choose another folder"
        ) from error
    if there and not resume:
        raise fastio.TrainError(
            f"{folder / LAST} was written by an earlier run: continue that run with --resume, "
            "choose another --checkpoint-dir, or delete the file"
        )


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint after comparing its checksums.

    Raises:
        CheckpointError: It is damaged, not a checkpoint of `fit`, or of another version.
        FileNotFoundError: There is none.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} does not match")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, pickle and torch each have errors of their own
        raise fastio.CheckpointError(
            f"{path} is damaged or not a checkpoint: {error}. Continue from a copy, or from "
            "another checkpoint in its folder"
        ) from error
    if not isinstance(content, dict) or "version" not in content:
        raise fastio.CheckpointError(f"{path} is not a checkpoint of fastio train")
    if content["version"] != VERSION:
        raise fastio.CheckpointError(
            f"{path} has version {content['version']}, and this fastio reads version {VERSION}"
        )
    return content


def check_identity(saved: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> int:
    """Compares the settings of a checkpoint with those of the run that continues from it.

    The run may have more epochs than the checkpoint, and with a constant learning rate also fewer.

    Returns:
        The number of epochs of the run that wrote the checkpoint.

    Raises:
        CheckpointError: Other settings differ; the error names them.
    """
    before, constant = saved.get("epochs", 0), own["schedule"] == "constant"
    if constant or own["epochs"] > before:
        saved = {**saved, "epochs": own["epochs"]}
    fewer = " A run can be continued with more epochs, but not with fewer."
    differing = [
        f"{name} {saved.get(name)!r} there, {own.get(name)!r} here"
        for name in sorted({*saved, *own})
        if saved.get(name) != own.get(name)
    ]
    if differing:
        raise fastio.CheckpointError(
            f"{path} belongs to another run: {'; '.join(differing)}. Use the same options, or "
            f"choose another --checkpoint-dir.{fewer if saved['epochs'] != own['epochs'] else ''}"
        )
    return int(before)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Returns the states of all random generators of this process."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    found = {
        "python": [version, list(numbers), gauss],
        # A tensor: torch.load(weights_only=True) takes no arrays of NumPy.
        "numpy": [kind, torch.from_numpy(np.array(keys)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restores the states of all random generators of this process."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy(), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
