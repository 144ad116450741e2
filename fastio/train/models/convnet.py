"""A small convolutional network, for machines without a GPU: the loader is what decides there."""

from __future__ import annotations

import torch
from torch import nn


class ConvNet(nn.Module):
    """Four strided convolutions and one linear layer: (N, 3, H, W) -> (N, num_classes).

    About 12 million multiplications for an image of 128 pixels, a 150th of ResNet-18's at 224.

    Args:
        num_classes: logits of a sample.
        image_size: taken for the likeness to other models; any from 32 pixels on works.
    """

    def __init__(self, num_classes: int, image_size: int = 224) -> None:
        super().__init__()
        if image_size < 32:
            raise ValueError(f"ConvNet needs images of at least 32 pixels, got {image_size}")
        self.features = nn.Sequential(
            *_layer(3, 8, kernel=4, stride=4, padding=0),
            *_layer(8, 16, kernel=3, stride=2, padding=1),
            *_layer(16, 32, kernel=3, stride=2, padding=1),
            *_layer(32, 64, kernel=3, stride=2, padding=1),
        )
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def _layer(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
