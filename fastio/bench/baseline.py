"""What a bench compares with: an image folder through torch's DataLoader and Pillow.

The way most people write it, with torchvision's transforms in a few lines, so that nothing has to
be installed for the comparison.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate

from fastio.bench.subject import MEAN, STD
from fastio.errors import BenchError
from fastio.formats import IMG_EXTENSIONS
from fastio.stats import Stats


class PillowFolder(Dataset[tuple[torch.Tensor, int]]):
    """Samples (image, label) of a folder of images for each class; image (C, H, W).

    Args:
        folder: has a folder for each class.
        size: height and width of the images, in pixels.
        normalized: float32, normalised by ImageNet's mean and deviation; else uint8.
        augment: crop at random and flip half of them; else resize and take the middle.

    Raises:
        BenchError: there are no images in class folders.
    """

    def __init__(self, folder: str, size: int, normalized: bool, augment: bool = True) -> None:
        root = Path(folder)
        classes = sorted(entry for entry in root.glob("*") if entry.is_dir())
        self.samples = [
            (str(path), label)
            for label, one in enumerate(classes)
            for path in sorted(one.rglob("*"))
            if path.suffix.lower() in IMG_EXTENSIONS
        ]
        if not self.samples:
            raise BenchError(f"{folder} has no folders with images: --baseline needs some")
        self._size = size
        self._augment = augment
        self._normalized = normalized
        self._mean, self._std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        image = random_crop(image, self._size) if self._augment else middle(image, self._size)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if not self._normalized:
            return pixels, label
        return pixels.float().div_(255).sub_(self._mean).div_(self._std), label


def random_crop(image: Image.Image, size: int) -> Image.Image:
    """RandomResizedCrop(size), then RandomHorizontalFlip(), as torchvision draws them."""
    image = image.crop(random_box(image.width, image.height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a crop."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            return x, y, x + w, y + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    x, y = (width - w) // 2, (height - h) // 2
    return x, y, x + w, y + h


def middle(image: Image.Image, size: int) -> Image.Image:
    """Resize(evaluation_edge(size)), then CenterCrop(size)."""
    edge, shorter = evaluation_edge(size), min(image.width, image.height)
    width, height = edge * image.width // shorter, edge * image.height // shorter
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    x, y = round((width - size) / 2), round((height - size) / 2)
    return image.crop((x, y, x + size, y + size))


def evaluation_edge(size: int) -> int:
    """The shorter edge before the middle is cut out: 256 for 224, and so in proportion."""
    return size * 8 // 7


class _Collate:
    """A batch of samples, with callables on its images: in the worker processes, as is usual."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> tuple[Any, torch.Tensor]:
        images, labels = default_collate(samples)
        for transform in self._transforms:
            images = transform(images)
        return images, labels


class BaselineBatches:
    """A DataLoader's epochs as (batch, samples), its workers kept over epochs.

    Args:
        dataset: that it reads.
        batch_size: samples a step.
        workers: processes.
        transforms: callables on batches of images.
        pin_memory: for a GPU.
        shuffle: draw the rows at random.
    """

    def __init__(
        self,
        dataset: PillowFolder,
        batch_size: int,
        workers: int,
        transforms: Sequence[Callable[[Any], Any]] = (),
        pin_memory: bool = False,
        shuffle: bool = True,
    ) -> None:
        self.loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size,
            shuffle=shuffle,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_Collate(transforms),
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return _Samples(iter(self.loader))

    def stats(self) -> Stats:
        """Nothing is counted."""
        return Stats()


class _Samples:
    """Holds no batch; see `run_loop`."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> _Samples:
        return self

    def __next__(self) -> tuple[Any, int]:
        batch = next(self._batches)
        return batch, len(batch[1])
