"""Vision transformers: Dosovitskiy et al., "An image is worth 16x16 words", arXiv:2010.11929.

The widths of the tiny and the small one are those of Touvron et al. (DeiT), arXiv:2012.12877,
table 1.
"""

from __future__ import annotations

import torch
from torch import nn

from fastio.train.models.parts import SMALL_IMAGE, Attention


class Layer(nn.Module):
    """Attention and a two-layer network, each behind a norm, added to its input (section 3.1)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.norm_attention(tokens))
        added: torch.Tensor = tokens + self.mlp(self.norm_mlp(tokens))
        return added


class VisionTransformer(nn.Module):
    """(N, 3, image_size, image_size) -> (N, num_classes), by a class token.

    Args:
        num_classes: logits of a sample.
        image_size: height and width in pixels, a multiple of `patch`.
        patch: height and width of a patch in pixels; None: 16, or 4 for images below 64 pixels.
        width, depth, heads: of the transformer; the defaults are ViT-S.

    Raises:
        ValueError: the image's size is no multiple of the patch's.
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
