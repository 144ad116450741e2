"""Single samples as Python functions get them: arrays, PIL images and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils import worker

from fastio.packed.pixels import pillow_image
from fastio.tensors.results import is_pillow
from fastio.transforms import SampleType


def image_as(image: Any, kind: SampleType) -> Any:
    """Returns an image in a type; what is no image stays as it is.

    Args:
        image: an array (H, W, C), a tensor (C, H, W) or a PIL image; it shares memory with the
            result where that is possible.
        kind: the type of the result.
    """
    if kind == "pillow":
        array = _as_array(image)
        known = isinstance(array, np.ndarray) and array.ndim == 3 and array.dtype == np.uint8
        return pillow_image(array) if known else image
    if kind == "array":
        return _as_array(image)
    array = _as_array(image) if is_pillow(image) else image
    if isinstance(array, np.ndarray) and array.ndim == 3:
        image = torch.from_numpy(array).permute(2, 0, 1)
    if kind == "tv_tensor" and type(image) is Tensor:
        return tv_image(image)
    return image


def tv_image(image: Tensor) -> Any:
    """Returns an image (C, H, W) as a `torchvision.tv_tensors.Image` that shares its memory."""
    # A worker process that was not forked has not imported torchvision yet.
    from torchvision import tv_tensors

    return tv_tensors.Image(image)


def _as_array(image: Any) -> Any:
    if is_pillow(image):
        pixels = np.array(image)
        return pixels[..., None] if pixels.ndim == 2 else pixels
    if isinstance(image, Tensor) and image.ndim == 3:
        return image.permute(1, 2, 0).numpy()
    return image


def seed_torch(seed: int) -> None:
    """Seeds torch's global generator of the CPU."""
    # torch.manual_seed would seed the generators of all devices as well, for each sample.
    torch.default_generator.manual_seed(seed)


def become_worker(number: int, count: int) -> None:
    """Makes torch regard this process as a worker of a loader.

    torch then computes in the calling thread only, as in DataLoader's worker processes, and
    `torch.utils.data.get_worker_info()` returns these numbers, without a dataset.

    Args:
        number: the number of the worker.
        count: the number of workers that work at the same time.
    """
    torch.set_num_threads(1)
    seed = torch.initial_seed() + number
    own: Any = {"id": number, "num_workers": count, "seed": seed, "dataset": None}
    # torch has no public way to set what get_worker_info() returns.
    worker._worker_info = worker.WorkerInfo(**own)
