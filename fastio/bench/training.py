"""The same training with fastio and with DataLoader: seconds and accuracy side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fastio.bench.baseline import BaselineBatches, PillowFolder, evaluation_edge
from fastio.bench.device import inputs_and_labels
from fastio.bench.models import load_model
from fastio.bench.subject import MEAN, STD, Subject
from fastio.cores import available_cores
from fastio.diagnose import Training
from fastio.errors import BenchError
from fastio.loader import Loader
from fastio.tensors import to_device
from fastio.transforms import CenterCrop, Normalize, Resize

_LEARNING_RATE = 3e-3


def accuracies(subject: Subject, device: torch.device) -> tuple[Training, ...]:
    """Trains the model for `Options.epochs` with each loader, from the same initial weights.

    Args:
        subject: images with labels; where `Options.baseline` names a folder, DataLoader reads that.
        device: of the model.

    Raises:
        BenchError: the samples are no (image, label), or the model is no torch module.
    """
    found = []
    options = subject.options
    with subject.open() as batches:
        loader: Any = batches.loader
        found.append(_train("fastio", _Epochs(loader), subject, device))
    if options.baseline:
        folder = PillowFolder(options.baseline, options.size, normalized=True)
        pin = device.type == "cuda"
        plain = BaselineBatches(
            folder, subject.batch_size, available_cores(), options.transforms, pin
        )
        found.append(_train("DataLoader", plain.loader, subject, device))
    return tuple(found)


@dataclass(frozen=True)
class _Epochs:
    """A loader whose iterators are its epochs, one after the other."""

    loader: Loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def _train(name: str, batches: Iterable[Any], subject: Subject, device: torch.device) -> Training:
    torch.manual_seed(subject.options.seed)
    model = load_model(subject)
    if model is None:
        raise BenchError(f"{subject.options.model} returns no torch module, which epochs= needs")
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), _LEARNING_RATE)
    loss_sum = torch.zeros((), device=device)
    begin = time.perf_counter()
    steps = 0
    for _ in range(subject.options.epochs):
        loss_sum.zero_()
        steps = 0
        for batch in batches:
            images, labels = inputs_and_labels(to_device(batch, device))
            if labels is None:
                raise BenchError("accuracy needs samples (image, label) with integer labels")
            loss = nn.functional.cross_entropy(model(images).float(), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += loss.detach()
            steps += 1
    mean_loss = float(loss_sum) / max(1, steps)  # waits for the device
    seconds = time.perf_counter() - begin
    options = subject.options
    evaluated = options.val or options.data
    accuracy = top1(
        model, evaluated, options.size, subject.batch_size, device, threads=subject.threads
    )
    told = mean_loss if math.isfinite(mean_loss) else None
    return Training(name, subject.options.epochs, seconds, accuracy, told)


def top1(
    model: nn.Module, data: Any, size: int, batch_size: int, device: torch.device, threads: int = 0
) -> float:
    """Top-1 of a model on images, resized and cut from the middle, on this process alone."""
    right = total = 0
    with Loader(
        data,
        batch_size,
        num_workers=threads,
        transforms=[Resize(evaluation_edge(size)), CenterCrop(size), Normalize(MEAN, STD)],
        device=device,
        rank=0,
        world_size=1,
    ) as loader:
        model.eval()
        with torch.inference_mode():
            for images, labels in loader:
                valid = loader.batch.valid
                guessed = model(images).argmax(1)[:valid]
                right += int((guessed == labels[:valid]).sum())
                total += valid
    return right / max(1, total)
