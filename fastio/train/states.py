"""What a checkpoint holds of model and optimizer: whole tensors, however FSDP sharded them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from fastio.train.parallel import Place


def full_states(
    model: nn.Module, optimizer: torch.optim.Optimizer, place: Place
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns full tensors on rank 0's CPU for `load_full_states`, independent of FSDP's sharding.

    All processes call it.
    """
    if not place.main and place.parallel != "fsdp":
        return {}, {}
    how = StateDictOptions(full_state_dict=True, cpu_offload=True)
    states = get_state_dict(model, optimizer, options=how)
    return cast(tuple[dict[str, Any], dict[str, Any]], states)


def load_full_states(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    model_state: dict[str, Any],
    optimizer_state: dict[str, Any],
) -> None:
    """Loads the result of `full_states` on every process."""
    set_state_dict(
        model,
        optimizer,
        model_state_dict=model_state,
        optim_state_dict=optimizer_state,
        options=StateDictOptions(full_state_dict=True),
    )


def load_full_weights(model: nn.Module, model_state: dict[str, Any]) -> None:
    """Loads the model's weights alone on every process."""
    set_model_state_dict(model, model_state, options=StateDictOptions(full_state_dict=True))
