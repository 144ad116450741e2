"""What is looked at before a run begins, and before what came of it is saved."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

import fastio
from fastio.train.options import Options
from fastio.train.parallel import Place


def check_loaders(
    options: Options, place: Place, loader: fastio.Loader, val_loader: fastio.Loader | None
) -> None:
    """Raises an error for data that cannot be used for training or evaluation. All processes call
    it.

    Raises:
        TrainError: it has no batch, is not the same on all processes, or there is none to stop
            early by.
    """
    if options.early_stopping is not None and val_loader is None:
        raise fastio.TrainError(
            "early_stopping needs data to evaluate on: give val (--val DATA), or val_split "
            "(--val-split 0.1)"
        )
    if not len(loader):
        raise fastio.TrainError(f"{options.data} has no samples to train on")
    if val_loader is not None and not len(val_loader):
        raise fastio.TrainError(f"{options.val or options.data} has no samples to evaluate on")
    batches = place.gather([len(loader), 0 if val_loader is None else len(val_loader)])
    for rank, found in enumerate(batches):
        if found != batches[0]:
            raise fastio.TrainError(
                "the processes have different data: batches to train and to evaluate on are "
                f"{batches[0]} for rank 0 and {found} for rank {rank}. Give all of them the same "
                "files"
            )


def finite_weights(model: nn.Module, place: Place) -> bool:
    """Returns whether the weights are finite on all processes. All processes call it."""
    parts = [_local(weight).isfinite().all() for weight in model.parameters()]
    good = torch.stack(parts).all().float() if parts else torch.ones((), device=place.device)
    return bool(place.lowest(good))


def _local(value: Any) -> Tensor:
    """Returns this process's part of a weight that FSDP shards; other tensors as they are."""
    return cast(Tensor, value.to_local() if hasattr(value, "to_local") else value)
