"""AlexNet in one column, as of "One weird trick for parallelizing convolutional neural networks".

Krizhevsky, arXiv:1404.5997, 2014, footnote 1: the network of the ImageNet paper (Krizhevsky,
Sutskever and Hinton, NIPS 2012, section 3.5) without its two columns and without local response
normalisation.
"""

from __future__ import annotations

import torch
from torch import nn

from fastio.train.models.parts import SMALL_IMAGE


class AlexNet(nn.Module):
    """Five convolutions and three fully connected layers: (N, 3, H, W) -> (N, num_classes).

    Images smaller than 64 pixels (CIFAR) get a first convolution of 3 x 3 and stride 1 instead of
    11 x 11 and stride 4. The features are averaged to 6 x 6, or fewer where the image makes fewer.

    Args:
        num_classes: logits of a sample.
        image_size: height and width in pixels that it is made for, at least 16; others work too.
        dropout: before the first two fully connected layers.
    """

    def __init__(self, num_classes: int, image_size: int = 224, dropout: float = 0.5) -> None:
        super().__init__()
        small = image_size < SMALL_IMAGE
        stem = nn.Conv2d(3, 64, 3, 1, 1) if small else nn.Conv2d(3, 64, 11, 4, 2)
        self.features = nn.Sequential(
            stem,
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        side = image_size if small else (image_size - 7) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        if side < 1:
            raise ValueError(f"AlexNet needs images of at least 16 pixels, got {image_size}")
        # Without it where it changes nothing: its gradient on GPUs is not deterministic.
        self.pool = nn.AdaptiveAvgPool2d(6) if side > 6 else nn.Identity()
        side = min(side, 6)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * side * side, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, num_classes),
        )
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.features(images))
        logits: torch.Tensor = self.classifier(features.flatten(1))
        return logits
