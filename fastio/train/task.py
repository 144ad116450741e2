"""The interface of a task to the training loop: data, model, loss and metric; and their sums.

A task is written once for a kind of data (image.py, text.py, tabular.py); `fit` trains any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fastio
from fastio.train.loaders import evaluation_loader, training_loader
from fastio.train.options import Options
from fastio.train.parallel import Place


@dataclass(frozen=True)
class Outcome:
    """The result of a batch as sums, so that batches of different sizes are added up correctly.

    Attributes:
        loss: scalar, the SUM of the losses of what counts in the batch; `Task.count` is how many
            these are. The loop divides by that of all batches and processes of a step.
        sums: tensors (of any shape) that add up over batches to what the metrics are made of; not
            differentiated.
    """

    loss: Tensor
    sums: Mapping[str, Tensor] = field(default_factory=dict)


class Task(ABC):
    """A kind of data with a model: data, loss and metric for the training loop.

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

    def train_loader(self, place: Place) -> fastio.Loader:
        """Returns shuffled batches on the place's device; see `loaders.training_loader`."""
        reading = self.reading(self.options.data, place, train=True)
        return training_loader(self.options, place, **reading)

    def val_loader(self, place: Place) -> fastio.Loader | None:
        """Returns evaluation batches, or None; see `loaders.evaluation_loader`."""
        reading = self.reading(self.options.val or self.options.data, place)
        return evaluation_loader(self.options, place, **reading)

    def reading(self, data: str, place: Place, *, train: bool = False) -> dict[str, Any]:
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


def counts(valid: int, rows: int, device: torch.device) -> Tensor:
    """Returns float32 (rows,): 1 for each valid sample, 0 for those after the first `valid`."""
    return (torch.arange(rows, device=device) < valid).float()


def classified(scores: Tensor, labels: Tensor, valid: int, smoothing: float = 0.0) -> Outcome:
    """Returns the summed cross-entropy of scores (N, classes) and int64 labels (N,), and how many
    of the first `valid` samples have the highest score at their label.
    """
    losses = cross_entropy(scores, labels, reduction="none", label_smoothing=smoothing)
    weights = counts(valid, len(labels), labels.device)
    correct = (scores.argmax(1) == labels) * weights
    return Outcome((losses * weights).sum(), {"correct": correct.sum()})


def accuracy(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns the metric of the sums of `classified`, 0.0 to 1.0."""
    return {"accuracy": float(sums["correct"] / sums["count"].clamp(min=1))}


Sums = dict[str, Tensor]


class Totals:
    """Sums on the device, which are not waited for until they are requested."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._sums: Sums = {}

    def add(self, outcome: Outcome, count: int | Tensor) -> None:
        """Adds a batch."""
        device = outcome.loss.device
        if not isinstance(count, Tensor):
            count = torch.full(
                (), count, device=device
            )  # a kernel, where a copy would be waited for
        values = {"loss": outcome.loss, "count": count, **outcome.sums}
        for name, value in values.items():
            value = value.detach().to(device, torch.float64)
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def take(self) -> Sums:
        """Returns the sums over all processes since the last call, as float64 on the CPU.

        All processes call it, each of them having added batches.
        """
        names, values = list(self._sums), list(self._sums.values())
        self._sums = {}
        if not values:
            return {}
        flat = self._place.sum(torch.cat([value.reshape(-1) for value in values])).cpu()
        parts = torch.split(flat, [value.numel() for value in values])
        return {n: p.reshape(v.shape) for n, p, v in zip(names, parts, values, strict=True)}


def added(sums: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> Sums:
    """Returns the sum of two mappings, key by key."""
    return {**sums, **{n: sums[n] + v if n in sums else v for n, v in more.items()}}
