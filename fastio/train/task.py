"""What the loop asks of whatever is trained: data, a model, a loss, a metric.

A task is written once for a kind of data (image.py, text.py, tabular.py); `fit` trains any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import fastio
from fastio.train.options import Options
from fastio.train.parallel import Place


@dataclass(frozen=True)
class Outcome:
    """What a model made of a batch, as sums, so that batches of any size add up rightly.

    Attributes:
        loss: scalar, the SUM of the losses of what counts in the batch; `Task.count` is how many
            these are. The loop divides by that of all batches and processes of a step.
        sums: tensors (of any shape) that add up over batches to what the metrics are made of; not
            differentiated.
    """

    loss: Tensor
    sums: Mapping[str, Tensor] = field(default_factory=dict)


class Task(ABC):
    """A kind of data with the model for it.

    `batch` is what the task's loaders yield; its samples from `valid` on repeat others (so that
    every process makes as many steps) and must count nowhere.

    Class attributes:
        name: as in `fastio train NAME`.
        unit: what the rate counts: "images", "rows", "tokens".
        metric: the key of `metrics` that decides what is best and when to stop early.
        greater_is_better: whether a higher metric is the better one.
        lr: learning rate where the options have none.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    metric: ClassVar[str]
    greater_is_better: ClassVar[bool]
    lr: ClassVar[float] = 1e-3

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def train_loader(self, place: Place) -> fastio.Loader:
        """Shuffled batches on the place's device: `loaders.training_loader` makes it."""

    @abstractmethod
    def val_loader(self, place: Place) -> fastio.Loader | None:
        """Batches to evaluate on, or None: `loaders.evaluation_loader` makes it."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The model with fresh weights from torch's generator, on the CPU."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        """Loss and sums of a batch. Runs under autocast; the same for training and evaluation."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of what was summed up, `metric` being one.

        Args:
            sums: float64 CPU tensors: those of `Outcome.sums`, and the scalars "loss" and "count".
        """

    def count(self, batch: Any, valid: int) -> int | Tensor:
        """How many losses are summed in `Outcome.loss`: samples, or tokens that count."""
        return valid

    def size(self, batch: Any, valid: int) -> int:
        """How many units a batch has, for the rate; told without a look at values on the device."""
        return valid

    def identity(self) -> dict[str, Any]:
        """The task's own settings as JSON values, model included: a checkpoint must have them."""
        return {}


def counts(valid: int, rows: int, device: torch.device) -> Tensor:
    """float32 (rows,): 1 for each sample that counts, 0 for those from `valid` on."""
    return (torch.arange(rows, device=device) < valid).float()
