"""The baseline of a bench: an image folder read by torch's DataLoader and Pillow.

It is set up as PyTorch's documentation recommends for speed: persistent worker processes, batches
of bytes in pinned memory that are copied to a GPU without blocking and normalised there.
torchvision's transforms are written out here, so that the comparison needs no other package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate

from fastio.diagnose.imagesteps import ImageSteps, PythonStep, decoded, middle
from fastio.diagnose.loop import Given
from fastio.diagnose.options import Options
from fastio.errors import BenchError, SourceNotFound
from fastio.runtime.cores import available_cores
from fastio.runtime.files import only_files
from fastio.sources import FolderDataset
from fastio.tensors.trees import Tail
from fastio.train.kinds import MEAN, STD
from fastio.transforms import Normalize

_ENDLESS = 1 << 40  # samples


class PillowFolder(Dataset[tuple[torch.Tensor, int]]):
    """Samples (image, label) of an image folder, decoded with Pillow; images have shape (C, H, W).

    Args:
        folder: path of a folder that has a folder of images for each class.
        size: height and width of the images, in pixels.
        normalized: whether images are float32, normalised by ImageNet's mean and deviation; else
            they are uint8.
        augment: whether to crop at random and flip half of the images; else they are resized and
            the centre is cropped.
        steps: transforms to run instead of both. A PIL image that they return becomes a tensor,
            and uint8 is normalised if `normalized`; any other result is delivered unchanged.

    Raises:
        BenchError: `folder` is not a folder, or it has no class folders with images.
    """

    def __init__(
        self,
        folder: str,
        size: int,
        normalized: bool,
        augment: bool = True,
        steps: Sequence[PythonStep] | None = None,
    ) -> None:
        found = image_folder(folder)
        self.samples = list(zip(found.paths, map(int, found.labels), strict=True))
        usual = ImageSteps.usual(size).python
        central = (PythonStep("CenterCrop", "crop", partial(middle, size=size)),)
        self._steps = steps if steps is not None else usual if augment else central
        self._normalized = normalized
        self._mean, self._std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb", opener=only_files) as file:
            image: Any = decoded(file.read())
        for step in self._steps:
            image = step.function(image)
        if isinstance(image, Image.Image):
            image = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if not self._normalized or image.dtype != torch.uint8:
            return image, label
        return image.float().div_(255).sub_(self._mean).div_(self._std), label


def image_folder(folder: str) -> FolderDataset:
    """Returns the images of class folders, with the labels that a Loader gives them.

    Raises:
        BenchError: `folder` is not a folder, or it has no class folders with images.
    """
    if not Path(folder).is_dir():
        raise BenchError(
            f"{folder} is not a folder: the DataLoader baseline needs a folder "
            "with one subfolder of images per class"
        )
    try:
        return FolderDataset(folder)
    except SourceNotFound as error:
        raise BenchError(
            f"{folder} has no subfolders with images, which the DataLoader baseline needs: {error}"
        ) from error


class _Collate:
    """Collates samples and applies callables to the images, in the worker processes."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> tuple[Any, torch.Tensor]:
        images, labels = default_collate(samples)
        for transform in self._transforms:
            images = transform(images)
        return images, labels


@dataclass(frozen=True)
class Delivery:
    """Moves batches (images, labels) from a DataLoader to the model's device.

    Attributes:
        device: device of the model. Copies to a GPU are asynchronous, on its current stream.
        channels_last: whether images get the channels-last memory format.
        normalize: whether images arrive as uint8 and are normalised on the device.
    """

    device: torch.device
    channels_last: bool = False
    normalize: bool = False

    def __call__(self, batch: Sequence[Any]) -> tuple[Any, Any]:
        images, labels = (part.to(self.device, non_blocking=True) for part in batch)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return (_NORMALIZED(images) if self.normalize else images), labels


_NORMALIZED = Tail([Normalize(MEAN, STD)])


class TorchLoader(Given):
    """A DataLoader with persistent workers and the methods that loops call on a Loader.

    The last batch of an epoch is left out if it is not full, unless it is the only one.

    Args:
        dataset: the images.
        batch_size: samples per step.
        workers: number of worker processes.
        transforms: callables on batches of images, in the workers.
        delivery: moves batches to the model; None leaves them as the workers made them.
        endless: whether epochs follow each other without a gap, so that as many batches as are
            wanted can be measured, however few there are in an epoch.
        pin_memory: whether batches for a GPU are put in pinned memory.
    """

    def __init__(
        self,
        dataset: PillowFolder,
        batch_size: int,
        workers: int,
        transforms: Sequence[Callable[[Any], Any]] = (),
        delivery: Delivery | None = None,
        endless: bool = False,
        pin_memory: bool = True,
    ) -> None:
        super().__init__()
        self._delivery = delivery
        on_gpu = delivery is not None and delivery.device.type == "cuda"
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size,
            sampler=RandomSampler(dataset, num_samples=_ENDLESS if endless else None),
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_Collate(transforms),
            pin_memory=pin_memory and on_gpu,
            drop_last=len(dataset) >= batch_size,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return map(self._delivered, self._loader)  # which holds no batch; see `run_loop`

    def _delivered(self, batch: Any) -> Any:
        self.batch.valid = len(batch[1])
        return batch if self._delivery is None else self._delivery(batch)


def baseline_loader(
    options: Options,
    batch_size: int,
    device: torch.device | None,
    *,
    normalized: bool,
    endless: bool = False,
) -> TorchLoader:
    """Returns a DataLoader of `options.baseline` with one worker per core.

    Args:
        options: the options of the bench.
        batch_size: samples per step.
        device: device of the model; None if there is no model.
        normalized: whether images are normalised float32; else they are uint8.
        endless: as in `TorchLoader`.
    """
    # Copying uint8 to a GPU moves a quarter of the bytes of float32. The user's own transforms,
    # however, get the images in the form in which a Loader delivers them.
    there = device is not None and device.type == "cuda" and not options.transforms
    assert options.baseline is not None
    steps = ImageSteps.of(options.pipeline, options.size).python
    images = PillowFolder(options.baseline, options.size, normalized and not there, steps=steps)
    delivery = None
    if device is not None:
        delivery = Delivery(device, options.channels_last, normalize=there)
    return TorchLoader(images, batch_size, available_cores(), options.transforms, delivery, endless)
