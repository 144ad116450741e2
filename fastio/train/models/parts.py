"""What several models share."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

# Images of fewer pixels a side get a first layer that does not shrink them, as CIFAR's 32 need it.
SMALL_IMAGE = 64


class Attention(nn.Module):
    """Multi-head self-attention: Vaswani et al., arXiv:1706.03762, section 3.2.2.

    Args:
        width: of a token, a multiple of `heads`.
        heads: attention heads.
        dropout: of the attention's weights.
        causal: a token attends to itself and those before it.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} is not divisible by {heads} heads")
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Of tokens (N, L, width); `mask` (N, 1, 1, L) bool is True at tokens to attend to.

        A causal attention takes no mask.
        """
        n, length, width = tokens.shape
        qkv = self.qkv(tokens).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        attended: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return attended


def mlp(sizes: list[int]) -> nn.Sequential:
    """Returns fully connected layers of the given widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def parameter_count(model: nn.Module) -> int:
    """Returns the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
