"""The optimizer and how its learning rate goes."""

from __future__ import annotations

from torch import nn
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

from fastio.train.options import Options


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
    warmup = min(round(options.warmup * steps_per_epoch), total - 1)
    if options.schedule == "onecycle":
        return OneCycleLR(optimizer, lr, total_steps=total + 1, pct_start=warmup / total)
    if options.schedule == "cosine":
        rest: LRScheduler = CosineAnnealingLR(optimizer, total - warmup)
    else:
        rest = ConstantLR(optimizer, factor=1.0)
    if warmup == 0:
        return rest
    rising = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [rising, rest], milestones=[warmup])
