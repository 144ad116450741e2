"""Models of images: float (N, 3, H, W) -> logits (N, num_classes).

Plain torch, written from the papers that they cite.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from fastio.train.models.parts import Layer

# Images of fewer pixels a side get a first layer that does not shrink them, as CIFAR's 32 need it.
SMALL_IMAGE = 64


class AlexNet(nn.Module):
    """AlexNet in one column: five convolutions and three fully connected layers.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997,
    2014, footnote 1: the network of the ImageNet paper (Krizhevsky, Sutskever and Hinton, NIPS
    2012, section 3.5) without its two columns and without local response normalisation.

    Images smaller than 64 pixels (CIFAR) get a first convolution of 3 x 3 and stride 1 instead of
    11 x 11 and stride 4. The features are averaged to 6 x 6, or fewer where the image makes fewer.

    Args:
        num_classes: The number of logits of a sample.
        image_size: The height and width in pixels that it is made for, at least 16.
        dropout: The dropout before the first two fully connected layers.
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


class ConvNet(nn.Module):
    """Four strided convolutions and one linear layer, for machines without a GPU.

    About 12 million multiplications for an image of 128 pixels, a 150th of ResNet-18's at 224.

    Args:
        num_classes: The number of logits of a sample.
        image_size: The height and width of images in pixels, at least 32; it changes nothing.
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


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Returns a convolution without bias, padded to keep the size apart from the stride, and a
    norm.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """A residual block, with a projection if the shapes differ.

    Args:
        inputs: The number of input channels.
        width: The number of channels of the 3 x 3 convolutions.
        stride: The stride of the first 3 x 3 convolution.
        bottleneck: Whether to use 1 x 1, 3 x 3 and 1 x 1 convolutions with 4 * width output
            channels instead of two 3 x 3 convolutions with width.
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
    """ResNet-18 or ResNet-50: He et al., arXiv:1512.03385, table 1.

    The 50 is version 1.5: bottlenecks have their stride in the 3 x 3 convolution, as Goyal et al.
    (arXiv:1706.02677, section 5.1) and MLPerf have it. The last batch normalisation of each block
    begins with a scale of zero (Goyal et al., section 5.1).

    Images smaller than 64 pixels get a first convolution of 3 x 3 and stride 1 without pooling, as
    the paper's networks for CIFAR do (section 4.2), instead of 7 x 7 and stride 2 with it.

    Args:
        depth: 18 or 50.
        num_classes: The number of logits of a sample.
        image_size: The height and width in pixels that it is made for; others work too.
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
                stages.append(Residual(channels, width, stride, bottleneck))
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


class VisionTransformer(nn.Module):
    """A vision transformer with a class token: Dosovitskiy et al., arXiv:2010.11929.

    The widths of the tiny and the small one are those of Touvron et al. (DeiT), arXiv:2012.12877,
    table 1.

    Args:
        num_classes: The number of logits of a sample.
        image_size: The height and width in pixels, a multiple of `patch`.
        patch: The height and width of a patch in pixels (default: 16, or 4 below 64 pixels).
        width, depth, heads: The size of the transformer; the defaults are ViT-S.

    Raises:
        ValueError: The size of the image is not a multiple of that of the patch.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int = 224,
        patch: int | None = None,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
    ) -> None:
        super().__init__()
        patch = patch or (4 if image_size < SMALL_IMAGE else 16)
        if image_size % patch:
            raise ValueError(
                f"images of {image_size} pixels cannot be divided into patches of {patch}: use "
                f"a multiple such as {max(1, round(image_size / patch)) * patch}"
            )
        count = (image_size // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, count + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.classifier = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(patches), -1, -1)
        tokens = torch.cat([first, patches], dim=1) + self.positions
        logits: torch.Tensor = self.classifier(self.norm(self.layers(tokens)[:, 0]))
        return logits
