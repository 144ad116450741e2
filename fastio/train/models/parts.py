"""What several models share."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head self-attention: Vaswani et al., arXiv:1706.03762, section 3.2.2.

    Args:
        width: The width of a token, a multiple of `heads`.
        heads: The number of attention heads.
        dropout: The dropout of the attention's weights.
        causal: Whether a token attends only to itself and those before it.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} is not divisible by {heads} heads")
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Returns (N, L, width) for tokens (N, L, width).

        `mask`, bool (N, 1, 1, L), is True at tokens to attend to; a causal attention takes none.
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


class Layer(nn.Module):
    """A layer of a transformer: attention and a two-layer network, each added to its input.

    Args:
        width, heads: As in `Attention`.
        post_norm: Whether the sums are normed, as in BERT; else the inputs of the two are, as in
            vision transformers.
        dropout: The dropout of the attention's weights and of the network's output.
        causal: As in `Attention`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        post_norm: bool = False,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        # The values of BERT, and of vision transformers.
        self._post_norm, eps = post_norm, 1e-12 if post_norm else 1e-6
        self.attention = Attention(width, heads, dropout, causal)
        self.norm_attention = nn.LayerNorm(width, eps=eps)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.norm_mlp = nn.LayerNorm(width, eps=eps)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self._post_norm:
            tokens = self.norm_attention(tokens + self.attention(tokens, mask))
            normed: torch.Tensor = self.norm_mlp(tokens + self.mlp(tokens))
            return normed
        tokens = tokens + self.attention(self.norm_attention(tokens), mask)
        added: torch.Tensor = tokens + self.mlp(self.norm_mlp(tokens))
        return added


def mlp(sizes: list[int]) -> nn.Sequential:
    """Returns fully connected layers of the given widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
