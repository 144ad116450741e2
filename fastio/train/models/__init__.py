"""Models to train, by name: plain torch, written from the papers that they cite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from fastio.train.models.images import AlexNet, ConvNet, ResNet, VisionTransformer
from fastio.train.models.tables import DLRM, HashedEmbeddings, Scaled, TabularMLP
from fastio.train.models.text import (
    ENCODER_SIZES,
    EncoderSize,
    LanguageModel,
    Pretrained,
    TextClassifier,
)

# (num_classes, image_size) -> a module of float images (N, 3, H, W) to logits (N, num_classes).
IMAGE_MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "alexnet": AlexNet,
    "convnet": ConvNet,
    "resnet18": partial(ResNet, 18),
    "resnet50": partial(ResNet, 50),
    "vit-tiny": partial(VisionTransformer, width=192, heads=3),
    "vit-small": VisionTransformer,
}

# (dense, sparse, rows) -> a module of float (N, dense) and integer (N, sparse) to outputs (N,).
TABULAR_MODELS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "dlrm": DLRM,
    "mlp": TabularMLP,
}

__all__ = [
    "DLRM",
    "ENCODER_SIZES",
    "IMAGE_MODELS",
    "TABULAR_MODELS",
    "EncoderSize",
    "HashedEmbeddings",
    "LanguageModel",
    "Pretrained",
    "Scaled",
    "TabularMLP",
    "TextClassifier",
    "VisionTransformer",
]
