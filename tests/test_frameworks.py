"""Frameworks that take a DataLoader: what they make of a Loader in its place is the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import fastio
from tests.support import import_torchvision

ROWS = 37


def images() -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (ROWS, 3, 8, 8), dtype=torch.uint8, generator=made)
    return TensorDataset(pixels, torch.arange(ROWS) % 4)


def same(run: Callable[[Any], list[Any]]) -> None:
    """A run gives the same with a DataLoader and with a Loader."""
    found = []
    for kind in (DataLoader, fastio.Loader):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        found.append(run(kind))
    plain, ours = found
    assert len(plain) == len(ours) > 0
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize("steps", [None, 4, 13], ids=["whole", "short", "long"])
@pytest.mark.parametrize(
    ("engine", "sampled"), [("Engine", False), ("Engine", True), ("DeterministicEngine", True)]
)
def test_ignite(engine: str, sampled: bool, steps: int | None) -> None:
    ignite = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite")
    data = images()

    def run(kind: Any) -> list[Any]:
        seen: list[Any] = []
        how: Any = {"sampler": RandomSampler(data)} if sampled else {"shuffle": True}
        loader = kind(data, 4, **how)
        trainer = getattr(ignite, engine)(lambda _, batch: seen.append([*batch]))
        trainer.run(loader, max_epochs=3, epoch_length=steps)
        return [*seen, torch.tensor([trainer.state.epoch_length])]

    same(run)


@pytest.mark.parametrize("training", [True, False])
def test_timm(training: bool) -> None:
    import_torchvision()
    pytest.importorskip("timm", reason="needs timm")
    from timm.data import Mixup
    from timm.data.loader import PrefetchLoader
    from timm.utils import accuracy

    def run(kind: Any) -> list[Any]:
        loader = kind(images(), 4, shuffle=training, drop_last=training)
        moved = PrefetchLoader(loader, device=torch.device("cpu"))
        mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=4)
        found = [torch.tensor([len(moved)])]
        for pixels, labels in moved:
            if training:
                found += mix(pixels, labels)
            else:
                found += [*accuracy(pixels.mean((2, 3)), labels, topk=(1, 3)), pixels]
        return found

    same(run)


def test_torchmetrics() -> None:
    import_torchvision()
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics")

    def run(kind: Any) -> list[Any]:
        metric = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        each = [metric(pixels.float().mean((2, 3)), y % 3) for pixels, y in kind(images(), 4)]
        return [*each, metric.compute()]

    same(run)
