"""A model as a bench trains it: precision, layout, compilation, and the loss of any batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fastio.diagnose.bench.compute import batch_loss, inputs_and_labels, learner_of
from fastio.diagnose.options import Options
from fastio.train.learner import Learner

CPU = torch.device("cpu")


def learner(model: nn.Module, **options: Any) -> Learner:
    return learner_of(model, CPU, Options("data", model="m:f", **options), 0.05)


def classified(rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 2, 4), torch.arange(rows) % 3


@pytest.mark.parametrize("amp", [None, "bf16", "fp16"])
def test_a_classifier_learns(amp: str | None) -> None:
    found = learner(nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), amp=amp)
    batch = classified()
    losses = [float(found.step([batch], batch_loss)) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]
    assert all(weights.dtype == torch.float32 for weights in found.model.parameters())


class Noting(nn.Module):
    """Notes what a convolution is given and gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.conv(images).detach())
        return self.conv(images).mean((2, 3))


@pytest.mark.parametrize(("amp", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_model_alone_is_autocast(amp: str, dtype: torch.dtype) -> None:
    model = Noting()
    loss = learner(model, amp=amp).step(
        [(torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))], batch_loss
    )
    assert model.seen[0].dtype == dtype
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("wanted", [False, True])
def test_weights_lie_as_asked(wanted: bool) -> None:
    weights = learner(Noting(), channels_last=wanted).model.conv.weight
    assert isinstance(weights, torch.Tensor)
    assert weights.is_contiguous(memory_format=torch.channels_last) == wanted


def test_a_model_is_compiled_as_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler itself is torch's; it takes too long for a test."""
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(self))
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    learner(model)
    assert compiled == []
    found = learner(model, compile=True)
    assert compiled == [found.model]


def test_a_step_without_labels_trains_on_the_mean() -> None:
    model = nn.Linear(4, 1, bias=False)
    before = model.weight.detach().clone()
    learner(model).step([(torch.ones(2, 4),)], batch_loss)
    assert bool((model.weight.detach() < before).all())


@pytest.mark.parametrize(
    ("batch", "inputs", "labelled"),
    [
        ((1, torch.zeros(2, dtype=torch.int64)), 1, True),
        ((1, torch.zeros(2)), 1, False),
        ([1], 1, False),
        ({"a": 1}, {"a": 1}, False),
    ],
)
def test_what_a_model_takes_of_a_batch(batch: Any, inputs: Any, labelled: bool) -> None:
    found, labels = inputs_and_labels(batch)
    assert found == inputs
    assert (labels is not None) == labelled
