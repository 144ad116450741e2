"""Trainings that measure time and accuracy: with each loader of a bench, and of a ladder's rungs.

They use the training loop of fastio.train with given loaders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fastio.diagnose.bench.baseline import baseline_loader
from fastio.diagnose.bench.compute import image_model, inputs_and_labels, train_options
from fastio.diagnose.bench.subject import Subject
from fastio.diagnose.imagesteps import evaluation_edge
from fastio.diagnose.measured import Training
from fastio.errors import BenchError, OptionError
from fastio.tensors.trees import to_device
from fastio.train import Options as TrainOptions
from fastio.train import Outcome, Task
from fastio.train.fields import schema_of
from fastio.train.kinds import MEAN, STD
from fastio.train.loop import time_epochs
from fastio.train.objectives import accuracy, classified
from fastio.train.parallel import Process
from fastio.transforms import CenterCrop, Normalize, Resize


class ImageTrial(Task):
    """Image classification with a given loader, evaluated on centre crops.

    Args:
        options: options of the training.
        size: height and width of the model's input, in pixels.
        loader: returns a loader of batches (images, labels) for a process.
        model: returns a new model.

    Raises:
        BenchError: raised by `step` if a batch is not (images, labels).
    """

    name = "trial"
    unit = "images"
    metric = "accuracy"
    greater_is_better = True
    lr = 3e-3

    def __init__(
        self,
        options: TrainOptions,
        size: int,
        loader: Callable[[Process], Any],
        model: Callable[[], nn.Module],
    ) -> None:
        super().__init__(options)
        self._size, self._loader, self._model = size, loader, model
        self._device = torch.device("cpu")

    def train_loader(self, process: Process) -> Any:
        self._device = process.device
        return self._loader(process)

    def reading(self, data: str, process: Process, *, train: bool = False) -> dict[str, Any]:
        edge = evaluation_edge(self._size)
        steps = [Resize(edge), CenterCrop(self._size), Normalize(MEAN, STD)]
        return {"transforms": steps, "channels_last": self.options.channels_last}

    def model(self) -> nn.Module:
        return self._model()

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        images, labels = inputs_and_labels(to_device(batch, self._device))
        if labels is None:
            raise BenchError("accuracy needs samples (image, label) with integer labels")
        return classified(model(images).float(), labels, valid)

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return accuracy(sums)


def check_val(subject: Subject) -> None:
    """Raises an error if the evaluation data is missing or has other classes.

    Raises:
        OptionError: `epochs` is not given.
        BenchError: it has no images, or has other classes than the data.
        FastioError: it cannot be read.
    """
    options = subject.options
    if options.val is None:
        return
    if not options.epochs:
        raise OptionError("val needs epochs: the model is evaluated after each epoch of training")
    schema = schema_of(options.val)
    if not schema.image_fields:
        raise BenchError(f"--val {options.val} has no images")
    check_classes(str(options.data), subject.schema.classes, options.val, schema.classes)


def check_classes(
    data: str, ours: Sequence[str] | None, val: str, others: Sequence[str] | None
) -> None:
    """Raises an error if the classes differ from those of the data.

    Args:
        data, val: paths of the training and evaluation data, for the message.
        ours, others: names of their classes in order; None if unknown, which is no error.

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
        subject: images with labels. If `Options.baseline` is given, DataLoader reads that folder.
        device: device of the model.

    Raises:
        BenchError: samples are not (image, label), or the model is not a torch module.
    """
    options = subject.options
    found = [_train("fastio", lambda _: subject.open(), subject, device)]
    if options.baseline:
        plain = baseline_loader(options, subject.batch_size, device, normalized=True)
        found.append(_train("DataLoader", lambda _: plain, subject, device))
    return tuple(found)


def _train(
    name: str, loader: Callable[[Process], Any], subject: Subject, device: torch.device
) -> Training:
    asked = subject.options
    options = replace(
        train_options(asked, device),
        schedule="onecycle",
        epochs=asked.epochs,
        warmup=0.3 * asked.epochs,
        val=asked.val or asked.data,
        val_batch_size=subject.batch_size,
        threads=subject.threads,
    )
    classes = len(subject.schema.classes or ())
    task = ImageTrial(options, asked.size, loader, lambda: image_model(asked, classes))
    timed = time_epochs(task, options, Process(device))
    loss = timed.train["loss"]
    # JSON has no NaN.
    told = loss if math.isfinite(loss) else None
    return Training(name, asked.epochs, timed.seconds, timed.val["accuracy"], told)
