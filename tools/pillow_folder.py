"""What fastio is compared with: an image folder read by Pillow, the way most people write it.

torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, ToTensor and
Normalize, in a few lines, so that the comparison needs no torchvision.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class PillowFolder(Dataset[tuple[torch.Tensor, int]]):
    """Samples (image, label) of a folder of images for each class; image (C, H, W).

    Args:
        folder: has a folder for each class.
        size: height and width of the images, in pixels.
        augment: crop at random and flip half of them; else resize and take the middle.
        normalize: (mean, std), one number a channel, for float32 images; None: uint8.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        augment: bool = True,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(classes)
            for path in sorted((folder / name).iterdir())
        ]
        self.size = size
        self.augment = augment
        self.normalize = normalize and tuple(torch.tensor(x)[:, None, None] for x in normalize)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        image = random_crop(image, self.size) if self.augment else middle(image, self.size)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if self.normalize is None:
            return pixels, label
        mean, std = self.normalize
        return pixels.float().div_(255).sub_(mean).div_(std), label


def random_crop(image: Image.Image, size: int) -> Image.Image:
    """RandomResizedCrop(size), then RandomHorizontalFlip()."""
    image = image.crop(random_box(image.width, image.height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, as Pillow's (left, top, right, bottom)."""
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
    """Resize(edge) of the shorter edge, then CenterCrop(size)."""
    edge = evaluation_edge(size)
    shorter = min(image.width, image.height)
    width, height = edge * image.width // shorter, edge * image.height // shorter
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    x, y = round((width - size) / 2), round((height - size) / 2)
    return image.crop((x, y, x + size, y + size))


def evaluation_edge(size: int) -> int:
    """The shorter edge before the middle is cut out: 256 for 224, and so in proportion."""
    return size * 8 // 7
