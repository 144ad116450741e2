"""A model that learns from the batches of a bench, as `fastio train` would train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fastio.diagnose.bench.options import Options
from fastio.errors import BenchError
from fastio.tensors import first_tensor
from fastio.train import Options as TrainOptions
from fastio.train import Task
from fastio.train.parallel import Place, autocast, wrap

Loss = Callable[[nn.Module, Any], Tensor]  # a model as it is called, a batch -> a scalar


class Trainee:
    """A model, its optimizer (AdamW) and, for fp16, its scaler.

    Args:
        model: with its weights, anywhere.
        device: where it is trained.
        options: whose `amp`, `compile` and `channels_last` count.
        loss: of a batch; called under autocast.
        learning_rate: a constant one.

    Raises:
        BenchError: lazy layers cannot be laid out so.

    Attributes:
        model: the model on the device, to be called as it is.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        options: Options,
        loss: Loss,
        learning_rate: float = 1e-4,
    ) -> None:
        self._how, self._device = train_options(options, device), device
        self._loss, self._learning_rate = loss, learning_rate
        model = model.to(device).train()
        if options.channels_last:
            if any(is_lazy(weights) for weights in model.parameters()):
                raise BenchError(
                    "channels_last is how weights lie, and lazy layers have no weights yet: give "
                    "layers with their sizes"
                )
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = wrap(model, Place(device), self._how)
        self.begin()

    def begin(self) -> None:
        """Forgets what the optimizer and the scaler know of earlier steps."""
        self._optimizer = torch.optim.AdamW(self.model.parameters(), self._learning_rate)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=self._how.amp == "fp16")

    def step(self, batch: Any) -> Tensor:
        """Forward, backward and update; the loss, which is not waited for.

        Only with fp16 a GPU is waited for: its scaler looks at the gradients.
        """
        with autocast(self._device, self._how):
            loss = self._loss(self.model, batch)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def train_options(options: Options, device: torch.device) -> TrainOptions:
    """What fastio.train calls the same."""
    return TrainOptions(
        data=options.data,
        device=str(device),
        amp=options.amp,
        compile=options.compile,
        channels_last=options.channels_last,
        seed=options.seed,
    )


def task_loss(task: Task) -> Loss:
    """The mean loss that a task of fastio.train has of a batch."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        some = first_tensor(batch)
        assert some is not None
        return task.step(model, batch, len(some)).loss / task.count(batch, len(some))

    return loss


def batch_loss(model: nn.Module, batch: Any) -> Tensor:
    """Of any model and batch.

    A batch (inputs, labels) with int64 labels (N,) is classified, by cross entropy; of any other
    the mean output is the loss. A batch that is a dict is passed as it is.
    """
    inputs, labels = inputs_and_labels(batch)
    output: Tensor = model(inputs)
    if labels is not None and output.ndim == 2:
        return nn.functional.cross_entropy(output.float(), labels)
    return output.float().mean()


def inputs_and_labels(batch: Any) -> tuple[Any, Tensor | None]:
    """What a model takes of a batch, and int64 labels (N,) where it has some."""
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        labels = batch[1]
        known = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1
        return batch[0], labels if known else None
    if isinstance(batch, (tuple, list)):
        return batch[0], None
    return batch, None
