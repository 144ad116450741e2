"""The interface of a task to the training loop: data, model, loss and metrics.

`kinds` has the tasks of `fastio train`; `fit` trains any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

import fastio
from fastio.train.loaders import evaluation_loader, training_loader
from fastio.train.objectives import Outcome
from fastio.train.options import Options
from fastio.train.parallel import Process


class Task(ABC):
    """A kind of data with a model: data, loss and metric for the training loop.

    `batch` is what the task's loaders yield; its samples from `valid` on repeat others (so that
    every process makes as many steps) and must count nowhere.

    Attributes:
        options: How to train.
        name: As in `fastio train NAME`.
        unit: What the rate counts: "images", "rows", "tokens".
        metric: The key of `metrics` that decides what is best and when to stop early.
        greater_is_better: Whether a higher metric is the better one.
        lr: Learning rate where the options have none.
    """

    name: str
    unit: str
    metric: str
    greater_is_better: bool
    lr: float = 1e-3

    def __init__(self, options: Options) -> None:
        self.options = options

    def train_loader(self, process: Process) -> fastio.Loader:
        """Returns shuffled batches on the device of the process; see `loaders.training_loader`."""
        reading = self.reading(self.options.data, process, train=True)
        return training_loader(self.options, process, **reading)

    def val_loader(self, process: Process) -> fastio.Loader | None:
        """Returns evaluation batches, or None; see `loaders.evaluation_loader`."""
        reading = self.reading(self.options.val or self.options.data, process)
        return evaluation_loader(self.options, process, **reading)

    def reading(self, data: str, process: Process, *, train: bool = False) -> dict[str, Any]:
        """Returns the arguments of the loader of some data: transforms, fields, opener, ..."""
        return {}

    @abstractmethod
    def model(self) -> nn.Module:
        """Returns the model on the CPU, with initial weights from torch's generator."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        """Returns loss and sums of a batch. Runs under autocast, in training and in evaluation."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Returns the metrics of the sums; `metric` is one of them.

        Args:
            sums: float64 CPU tensors: those of `Outcome.sums`, and the scalars "loss" and "count".
        """

    def count(self, batch: Any, valid: int) -> int | Tensor:
        """Returns how many losses `Outcome.loss` sums: samples, or tokens that count."""
        return valid

    def size(self, batch: Any, valid: int) -> int:
        """Returns the number of units in a batch, for the rate, without reading from the device."""
        return valid

    def identity(self) -> dict[str, Any]:
        """Returns the task's settings as JSON values, which a resumed checkpoint must share."""
        return {}
