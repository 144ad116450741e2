"""Checkpoints: files that are there whole or not at all, and random states.

A checkpoint is what `torch.save` writes of a dictionary of tensors, numbers, strings and lists, so
that `torch.load(path, weights_only=True)` reads it. Its key "model" is a plain state_dict.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

import fastio

VERSION = 1


def save(content: Mapping[str, Any], path: Path) -> None:
    """Writes a checkpoint under a temporary name, flushes it to the disk, and renames it.

    Raises:
        OSError: it cannot be written; what was at the path stays.
    """
    _publish(path, lambda file: torch.save({"version": VERSION, **content}, file))


def save_json(content: Any, path: Path) -> None:
    """Writes a JSON file likewise."""
    _publish(path, lambda file: file.write(json.dumps(content, indent=1).encode()))


def _publish(path: Path, write: Any) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            _flush(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with _directory(path.parent) as descriptor:
        os.fsync(descriptor)


def check_writable(folder: Path) -> None:
    """Makes a folder for checkpoints, where it is not there, and writes a file that goes again.

    Raises:
        TrainError: it cannot be made, or nothing can be written to it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise fastio.TrainError(
            f"checkpoint_dir={folder} cannot be written ({error.strerror}): choose another folder"
        ) from error


def keep(path: Path, name: Path) -> None:
    """Gives a checkpoint a second name, atomically, which stays when the first is replaced.

    Raises:
        OSError: it cannot be written; what had the name stays.
    """
    temporary = name.with_name(name.name + ".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # this file system has no second names
        _publish(name, lambda file: file.write(path.read_bytes()))
        return
    os.replace(temporary, name)
    with _directory(name.parent) as descriptor:
        os.fsync(descriptor)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint, whose checksums are compared first.

    Raises:
        CheckpointError: it is damaged, is none of `fit`'s, or of another version.
        FileNotFoundError: there is none.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise fastio.CheckpointError(f"{path} is damaged: {damaged} in it has another checksum")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except fastio.CheckpointError:
        raise
    except Exception as error:  # zipfile, pickle and torch each have errors of their own
        raise fastio.CheckpointError(
            f"{path} is damaged or no checkpoint: {error}; go on from a copy of it, or from "
            "another one of its folder"
        ) from error
    if not isinstance(content, dict) or "version" not in content:
        raise fastio.CheckpointError(f"{path} is no checkpoint of fastio train")
    if content["version"] != VERSION:
        raise fastio.CheckpointError(
            f"{path} has version {content['version']}, and this fastio reads version {VERSION}"
        )
    return content


def check_identity(saved: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
    """Refuses the checkpoint of another run.

    Raises:
        CheckpointError: it names what differs.
    """
    differing = [
        f"{name} {saved.get(name)!r} there, {own.get(name)!r} here"
        for name in sorted({*saved, *own})
        if saved.get(name) != own.get(name)
    ]
    if differing:
        raise fastio.CheckpointError(
            f"{path} is of another run: {'; '.join(differing)}. Go on with the same options, or "
            "choose another --checkpoint-dir"
        )


def rng_state(device: torch.device) -> dict[str, Any]:
    """The states of all random generators of this process."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    found = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(np.array(keys)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Puts all random generators of this process where `rng_state` found them."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy(), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _directory(path: Path) -> Any:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
