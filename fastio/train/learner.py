"""A model with its optimizer, learning rate schedule and gradient scaler.

All trainings make their steps here: `fit`, the epochs that a bench times, and the steps of a model
that a bench measures alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)
from torch.optim.swa_utils import get_ema_multi_avg_fn

import fastio
from fastio.train.options import Options
from fastio.train.parallel import Process, accumulating, autocast, local, prepare, wrap

T = TypeVar("T")


class Learner:
    """A model with its optimizer, learning rate schedule and gradient scaler.

    Args:
        model: The model, on any device.
        options: Decide the optimizer, schedule, precision, memory layout and compilation.
        process: This process; the model is moved to its device.
        lr: The maximum learning rate.
        steps_per_epoch: The number of steps of an epoch, for the schedule.

    Attributes:
        model: The model, whose weights are trained.
        called: The model as it is called in training: inside DDP, compiled, ...
        averaged: A copy of the model with the moving averages of its weights and buffers, which
            begin with the initial values; None without `ema`.
        optimizer, scheduler, scaler: Those of torch.

    Raises:
        TrainError: `ema` is given, and the model has lazy layers.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        process: Process,
        lr: float,
        steps_per_epoch: int = 1,
    ) -> None:
        self._options, self._process = options, process
        self._lr, self._steps_per_epoch = lr, steps_per_epoch
        self.model = model.to(process.device)
        if options.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.averaged = None
        if options.ema is not None:
            self.averaged = _copied(self.model)  # before FSDP, which allows no copies
            prepare(self.averaged, process, options, trained=False)
        self.called = wrap(self.model, process, options)
        self.begin()

    def begin(self) -> None:
        """Resets optimizer, schedule, scaler and averages."""
        options = self._options
        if self.averaged is not None:
            average(self.averaged, self.model, decay=0.0)
        self.optimizer = make_optimizer(self.model, options, self._lr)
        self.scheduler = make_scheduler(self.optimizer, options, self._steps_per_epoch, self._lr)
        device = self._process.device.type
        self.scaler = torch.amp.GradScaler(device, enabled=options.amp == "fp16")

    def step(self, batches: Sequence[T], loss: Callable[[nn.Module, T], Tensor]) -> Tensor:
        """Makes one step of the optimizer, on the summed gradients of some batches.

        Args:
            batches: The batches of this process.
            loss: Returns the scalar loss of the called model on a batch; runs under autocast.

        Returns:
            The sum of the losses, on the device, without waiting for it. Only with fp16 the GPU is
            waited for, because the scaler reads the gradients.
        """
        losses = []
        for number, batch in enumerate(batches, 1):
            with accumulating(self.called, self._process, last=number == len(batches)):
                with autocast(self._process.device, self._options):
                    found = loss(self.called, batch)
                self.scaler.scale(found).backward()  # type: ignore[no-untyped-call]
            losses.append(found.detach())
        if self._options.clip_grad_norm is not None:
            # The limit applies to the real gradients, and not to those that are scaled for fp16.
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._options.clip_grad_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.get_scale() >= scale:  # else gradients overflowed: the step was left out
            self.scheduler.step()
        if self.averaged is not None and self._options.ema is not None:
            average(self.averaged, self.model, self._options.ema)
        return torch.stack(losses).sum()

    def reschedule(self, steps: int) -> None:
        """Replaces the schedule by the one of the options, after a number of steps.

        Args:
            steps: How many steps of the schedule have been made.
        """
        fresh = make_optimizer(self.model, self._options, self._lr)
        scheduler = make_scheduler(fresh, self._options, self._steps_per_epoch, self._lr)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the optimizer makes no steps
            for _ in range(steps):
                scheduler.step()
        for group, found in zip(self.optimizer.param_groups, fresh.param_groups, strict=True):
            group.update({name: value for name, value in found.items() if name != "params"})
        self.scheduler.load_state_dict(scheduler.state_dict())


def _copied(model: nn.Module) -> nn.Module:
    if any(is_lazy(weights) for weights in model.parameters()):
        raise fastio.TrainError(
            "ema cannot average a model with lazy layers, whose weights have no shape yet: call "
            "the model once before it is returned, or leave ema out"
        )
    return deepcopy(model)


@torch.no_grad()
def average(averaged: nn.Module, model: nn.Module, decay: float) -> None:
    """Updates the averages of weights and floating-point buffers; copies other buffers.

    This does not wait for the GPU. torch's AveragedModel waits in every step, because it counts
    steps in a tensor that it copies to the device.

    Args:
        averaged: A copy of the model; each value becomes decay * value + (1 - decay) * model's.
        model: The model.
        decay: 0.0 copies the model.
    """
    pairs = list(zip(_values(averaged), _values(model), strict=True))
    moved = [pair for pair in pairs if pair[0].is_floating_point()]
    if moved:
        own, others = zip(*moved, strict=True)
        get_ema_multi_avg_fn(decay)(list(own), list(others), 0)  # type: ignore[no-untyped-call]
    for value, other in pairs:
        if not value.is_floating_point():
            value.copy_(other)


def _values(model: nn.Module) -> list[Tensor]:
    return [local(value.detach()) for value in chain(model.parameters(), model.buffers())]


def make_optimizer(model: nn.Module, options: Options, lr: float) -> Optimizer:
    """Returns AdamW or SGD, with weight decay for matrices and kernels only."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decaying = [p for name, p in trained if _decays(name, p)]
    others = [p for name, p in trained if not _decays(name, p)]
    groups = [
        {"params": decaying, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if options.optimizer == "sgd":
        return SGD(groups, lr=lr, momentum=0.9, nesterov=True)
    return AdamW(groups, lr=lr)


def _decays(name: str, weight: nn.Parameter) -> bool:
    """Returns whether a parameter is a layer's weight: `weight`, or `in_proj_weight` of an
    attention.

    Biases and norms have one dimension. Class tokens, tables of positions and scales of layers may
    have more, but no such name.
    """
    return name.endswith("weight") and (is_lazy(weight) or weight.ndim >= 2)


def make_scheduler(
    optimizer: Optimizer, options: Options, steps_per_epoch: int, lr: float
) -> LRScheduler:
    """Returns a schedule over all steps of the run, to be stepped after each optimizer step."""
    total = options.epochs * steps_per_epoch
    # At least one step is left for the part after the warm-up.
    warmup = min(round(options.warmup * steps_per_epoch), total - 1)
    if options.schedule == "onecycle":
        # One step more: the scheduler is also stepped after the last optimizer step. From the step
        # that is its total on, the learning rate would rise again.
        return OneCycleLR(optimizer, lr, total_steps=total + 1, pct_start=warmup / total)
    if options.schedule == "cosine":
        rest: LRScheduler = CosineAnnealingLR(optimizer, total - warmup)
    else:
        rest = ConstantLR(optimizer, factor=1.0)
    if warmup == 0:
        return rest
    rising = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [rising, rest], milestones=[warmup])
