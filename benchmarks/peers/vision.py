"""torchvision's decoder and transforms, for the loaders that leave both to the user.

The way that torchvision's documentation calls the fastest: v2 transforms on uint8 tensors, which
are antialiased, and float at the end. Its decoder has no DCT scaling.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2
from work import AREA, ASPECT, MEAN, SIZE, STD


def crop_and_normalize(*, pillow: bool = False) -> v2.Compose:
    """uint8 (3, H, W), or a Pillow image, to float32 (3, 224, 224)."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, scale=AREA, ratio=ASPECT, antialias=True),
            v2.RandomHorizontalFlip(),
            *([v2.ToImage()] if pillow else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def decoded(jpeg: bytes) -> Tensor:
    """The JPEG's pixels, uint8 (3, H, W)."""
    data = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
    pixels: Tensor = decode_jpeg(data, ImageReadMode.RGB)
    return pixels


def decoded_file(path: str) -> Tensor:
    """The same, of a file."""
    pixels: Tensor = decode_jpeg(read_file(path), ImageReadMode.RGB)
    return pixels
