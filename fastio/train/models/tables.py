"""Models for rows of numbers and categories.

Naumov et al., "Deep learning recommendation model for personalization and recommendation systems",
arXiv:1906.00091. The widths are those of its reference implementation for Criteo's Kaggle data.
"""

from __future__ import annotations

import torch
from torch import nn

from fastio.train.models.parts import mlp


class HashedEmbeddings(nn.Module):
    """Embedding tables of several integer columns, stored in one parameter.

    An id is taken modulo `rows`, so that any integer has a vector, and several may share one (the
    hashing trick; section 5.1 of the paper and `--max-ind-range` of its implementation).

    Args:
        columns: The number of columns of ids.
        rows: The number of vectors of each column.
        width: The width of a vector.
    """

    first: torch.Tensor

    def __init__(self, columns: int, rows: int, width: int) -> None:
        super().__init__()
        self.rows = rows
        self.table = nn.Embedding(columns * rows, width)
        # The buffer is not saved in checkpoints, because it follows from the arguments.
        self.register_buffer("first", torch.arange(columns) * rows, persistent=False)
        # The bound is that of the paper's reference implementation.
        bound = rows**-0.5
        nn.init.uniform_(self.table.weight, -bound, bound)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns vectors (N, columns, width) for any integers (N, columns)."""
        # torch.remainder has the sign of the divisor, so negative ids have a vector too.
        vectors: torch.Tensor = self.table(torch.remainder(ids, self.rows) + self.first)
        return vectors


class DLRM(nn.Module):
    """Numbers (N, dense) and ids (N, sparse) -> logits (N,).

    The numbers go through the bottom MLP to a vector like those of the ids; the dot products of all
    pairs of vectors, beside the bottom MLP's, go through the top MLP (section 2.1).

    Args:
        dense, sparse: The number of columns of numbers and of ids, at least one each.
        rows: The number of vectors of each column of ids, which are taken modulo it.
        width: The width of a vector.
        bottom, top: The widths of the hidden layers.
    """

    pairs: torch.Tensor

    def __init__(
        self,
        dense: int,
        sparse: int,
        rows: int = 100_000,
        width: int = 16,
        bottom: tuple[int, ...] = (512, 256, 64),
        top: tuple[int, ...] = (512, 256),
    ) -> None:
        super().__init__()
        if not dense or not sparse:
            raise ValueError(f"DLRM needs columns of numbers and of ids, got {dense} and {sparse}")
        self.embeddings = HashedEmbeddings(sparse, rows, width)
        self.bottom = nn.Sequential(mlp([dense, *bottom, width]), nn.ReLU())
        pairs = torch.tril_indices(sparse + 1, sparse + 1, offset=-1)
        self.register_buffer("pairs", pairs[0] * (sparse + 1) + pairs[1], persistent=False)
        self.top = mlp([width + pairs.shape[1], *top, 1])

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), self.embeddings(sparse)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = products.index_select(1, self.pairs)
        outputs: torch.Tensor = self.top(torch.cat([bottom, pairs], dim=1))
        return outputs.squeeze(1)


class TabularMLP(nn.Module):
    """An MLP over numbers and embedded ids: (N, dense), (N, sparse) -> (N,).

    Args:
        dense, sparse: The number of columns of numbers and of ids; one of them may be 0.
        rows, width: As in `DLRM`.
        hidden: The widths of the hidden layers.
    """

    def __init__(
        self,
        dense: int,
        sparse: int,
        rows: int = 100_000,
        width: int = 16,
        hidden: tuple[int, ...] = (512, 256),
    ) -> None:
        super().__init__()
        if not dense and not sparse:
            raise ValueError("there are neither numbers nor ids to learn from")
        self.embeddings = HashedEmbeddings(sparse, rows, width) if sparse else None
        self.layers = mlp([dense + sparse * width, *hidden, 1])

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        inputs = dense
        if self.embeddings is not None:
            inputs = torch.cat([dense, self.embeddings(sparse).flatten(1)], dim=1)
        outputs: torch.Tensor = self.layers(inputs)
        return outputs.squeeze(1)


class Scaled(nn.Module):
    """A model that standardises its inputs, and returns outputs in the units of the labels.

    NaN and infinity become 0, which is the mean of standardised numbers. Numbers that are float64
    are standardised in float64.

    Args:
        model: (N, dense), (N, sparse) -> (N,).
        dense: Means and deviations that numbers are standardised by, (dense,) each; None replaces
            them by log(1 + max(x, 0)), as the paper's implementation does with counts.
        label: Mean and deviation that outputs are scaled by.
    """

    mean: torch.Tensor
    deviation: torch.Tensor
    label: torch.Tensor

    def __init__(
        self,
        model: nn.Module,
        dense: tuple[torch.Tensor, torch.Tensor] | None,
        label: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.model = model
        self.log1p = dense is None
        mean, deviation = dense or (torch.zeros(0), torch.ones(0))
        self.register_buffer("mean", mean.double())
        self.register_buffer("deviation", deviation.double())
        self.register_buffer("label", torch.tensor(label, dtype=torch.float64))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Returns float64 (N,), because labels may be large compared to their deviation."""
        numbers = dense if dense.dtype == torch.float64 else dense.float()
        if self.log1p:
            numbers = numbers.clamp(min=0).log1p()
        else:
            mean, deviation = self.mean.to(numbers.dtype), self.deviation.to(numbers.dtype)
            numbers = (numbers - mean) / deviation
        known = torch.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0).float()
        outputs: torch.Tensor = self.model(known, sparse)
        return outputs.double() * self.label[1] + self.label[0]
