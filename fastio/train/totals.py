"""Losses and whatever metrics are made of, summed up over batches and processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fastio.train.parallel import Place
from fastio.train.task import Outcome

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
