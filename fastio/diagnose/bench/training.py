"""The same training with fastio and with DataLoader: seconds and accuracy side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fastio.cores import available_cores
from fastio.diagnose.bench.baseline import BaselineBatches, Delivery, PillowFolder, evaluation_edge
from fastio.diagnose.bench.models import load_trainee
from fastio.diagnose.bench.subject import MEAN, STD, Subject
from fastio.diagnose.bench.trainee import Trainee, inputs_and_labels
from fastio.diagnose.measured import Training
from fastio.errors import BenchError
from fastio.loader import Loader
from fastio.tensors import to_device
from fastio.transforms import CenterCrop, Normalize, Resize

_LEARNING_RATE = 3e-3
_WARM_UP_STEPS = 3


def check_val(subject: Subject) -> None:
    """Refuses data to evaluate on that is not there, or is of other classes.

    Raises:
        BenchError: its classes are not those of the data, or nothing is trained.
        FastioError: it is not there.
    """
    options = subject.options
    if options.val is None:
        return
    if not options.epochs:
        raise BenchError("val is evaluated on after epochs= of training: give them as well")
    with Loader(options.val) as loader:
        schema = getattr(loader.dataset, "schema", None)
    if schema is None or not schema.image_fields:
        raise BenchError(f"--val {options.val} has no images")
    check_classes(str(options.data), subject.schema.classes, options.val, schema.classes)


def check_classes(
    data: str, ours: Sequence[str] | None, val: str, others: Sequence[str] | None
) -> None:
    """Refuses classes that are numbered otherwise than those of the data.

    Args:
        data, val: what is trained on, and evaluated on, for the message.
        ours, others: their classes in order; None: not known, and not compared.

    Raises:
        BenchError: they differ.
    """
    if ours is None or others is None or list(ours) == list(others):
        return
    odd = sorted(set(ours) ^ set(others))[:5]
    raise BenchError(
        f"{val} has {len(others)} classes, {data} has {len(ours)}, and they must be the same"
        f"{': only one of them has ' + ', '.join(odd) if odd else ', in the same order'}"
    )


def accuracies(subject: Subject, device: torch.device) -> tuple[Training, ...]:
    """Trains the model for `Options.epochs` with each loader, from the same initial weights.

    Args:
        subject: images with labels; where `Options.baseline` names a folder, DataLoader reads that.
        device: of the model.

    Raises:
        BenchError: the samples are no (image, label), or the model is no torch module.
    """
    options = subject.options
    with subject.open() as batches:
        loader: Any = batches.loader
        found = [_train("fastio", _Epochs(loader), subject, device)]
    if options.baseline:
        there = device.type == "cuda" and not options.transforms
        plain = BaselineBatches(
            PillowFolder(options.baseline, options.size, normalized=not there),
            subject.batch_size,
            available_cores(),
            options.transforms,
            Delivery(device, options.channels_last, normalize=there),
        )
        found.append(_train("DataLoader", plain, subject, device))
    return tuple(found)


@dataclass(frozen=True)
class _Epochs:
    """A loader whose iterators are its epochs as (batch, samples), one after the other."""

    loader: Loader

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return ((batch, self.loader.batch.valid) for batch in self.loader)


def _train(
    name: str, batches: Iterable[tuple[Any, int]], subject: Subject, device: torch.device
) -> Training:
    options = subject.options
    torch.manual_seed(options.seed)
    trainee = load_trainee(subject, device, _LEARNING_RATE)
    _warm_up(trainee, batches, device)
    loss_sum = torch.zeros((), device=device)
    begin = time.perf_counter()
    steps = 0
    for _ in range(options.epochs):
        loss_sum.zero_()
        steps = 0
        for batch, _ in batches:
            loss_sum += trainee.step(_checked(to_device(batch, device)))
            steps += 1
    mean_loss = float(loss_sum) / max(1, steps)  # waits for the device
    seconds = time.perf_counter() - begin
    evaluated = options.val or options.data
    accuracy = top1(
        trainee.model, evaluated, options.size, subject.batch_size, device, threads=subject.threads
    )
    told = mean_loss if math.isfinite(mean_loss) else None
    return Training(name, options.epochs, seconds, accuracy, told)


def _warm_up(trainee: Trainee, batches: Iterable[tuple[Any, int]], device: torch.device) -> None:
    """Some steps that are forgotten: workers start, and the model is compiled.

    Lazy layers, whose weights begin with the first step, are left as they are.
    """
    if any(is_lazy(weights) for weights in trainee.model.parameters()):
        return
    weights = {name: value.clone() for name, value in trainee.model.state_dict().items()}
    for batch, _ in islice(batches, _WARM_UP_STEPS):
        trainee.step(_checked(to_device(batch, device)))
    trainee.model.load_state_dict(weights)
    trainee.begin()


def _checked(batch: Any) -> Any:
    """A batch with labels.

    Raises:
        BenchError: it has none.
    """
    if inputs_and_labels(batch)[1] is None:
        raise BenchError("accuracy needs samples (image, label) with integer labels")
    return batch


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
