"""What fastio is compared with: an image folder read by Pillow, the way most people write it.

torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, ToTensor and
Normalize, in a few lines, so that the comparison needs no torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from fastio.bench.baseline import evaluation_edge, middle, random_box, random_crop

__all__ = ["PillowFolder", "evaluation_edge", "middle", "random_box"]


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
