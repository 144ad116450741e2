"""Residual networks: He et al., "Deep residual learning for image recognition", arXiv:1512.03385.

ResNet-18 and ResNet-50 of table 1. The 50 is version 1.5: bottlenecks have their stride in the
3 x 3 convolution, as Goyal et al. (arXiv:1706.02677, section 5.1) and MLPerf have it. The last
batch normalisation of each block begins with a scale of zero (Goyal et al., section 5.1).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from fastio.train.models.parts import SMALL_IMAGE


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Returns a convolution without bias, padded to keep the size apart from the stride, and a
    norm.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """A residual block, with a projection if the shapes differ.

    Args:
        inputs: channels that come in.
        width: channels of the 3 x 3 convolutions.
        stride: of the first 3 x 3 convolution.
        bottleneck: 1 x 1, 3 x 3, 1 x 1 convolutions with 4 `width` channels out, instead of two
            3 x 3 convolutions with `width`.
    """

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        relu = nn.ReLU(inplace=True)
        if bottleneck:
            first = [_conv_norm(inputs, width, 1), relu, _conv_norm(width, width, 3, stride)]
            last = _conv_norm(width, outputs, 1)
        else:
            first = [_conv_norm(inputs, width, 3, stride)]
            last = _conv_norm(width, outputs, 3)
        nn.init.zeros_(last.get_parameter("1.weight"))
        self.residual = nn.Sequential(*first, relu, last)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.residual(features) + self.shortcut(features), inplace=True)


class ResNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes).

    Images smaller than 64 pixels get a first convolution of 3 x 3 and stride 1 without pooling, as
    the paper's networks for CIFAR do (section 4.2), instead of 7 x 7 and stride 2 with it.

    Args:
        depth: 18 or 50.
        num_classes: logits of a sample.
        image_size: height and width in pixels that it is made for; others work too.
    """

    def __init__(self, depth: Literal[18, 50], num_classes: int, image_size: int = 224) -> None:
        super().__init__()
        blocks, bottleneck = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}[depth]
        relu = nn.ReLU(inplace=True)
        if image_size < SMALL_IMAGE:
            self.stem = nn.Sequential(_conv_norm(3, 64, 3), relu)
        else:
            self.stem = nn.Sequential(_conv_norm(3, 64, 7, 2), relu, nn.MaxPool2d(3, 2, 1))
        stages: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                stages.append(Block(channels, width, stride, bottleneck))
                channels = 4 * width if bottleneck else width
        self.blocks = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.blocks(self.stem(images)))
        logits: torch.Tensor = self.classifier(features.flatten(1))
        return logits
