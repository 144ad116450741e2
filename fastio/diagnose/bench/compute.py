"""What takes the batches of a bench: a model, or an accelerator that is emulated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fastio.device import resolve_device
from fastio.diagnose.bench.subject import Subject, check_model
from fastio.diagnose.device import CpuModel, CudaModel, Device, EmulatedAccelerator, TrainStep
from fastio.diagnose.imagesteps import load_named
from fastio.diagnose.options import PRESETS, Options, Preset
from fastio.errors import BenchError, OptionError
from fastio.tensors.trees import first_tensor
from fastio.train import Options as TrainOptions
from fastio.train import Task
from fastio.train.learner import Learner
from fastio.train.models import IMAGE_MODELS
from fastio.train.parallel import Process
from fastio.train.run import backends

Loss = Callable[[nn.Module, Any], Tensor]  # a model as it is called, a batch -> a scalar
_LEARNING_RATE = 1e-4


def load_step(subject: Subject, device: torch.device) -> TrainStep:
    """Returns a training step of the model, which is moved to the device.

    Raises:
        OptionError: there is no such model, or an option does not apply to it.
        BenchError: it returns something else.
    """
    options = subject.options
    assert options.model is not None
    if subject.task is not None:
        made: Any = subject.task.model()
    elif options.model_by_name:
        made = image_model(options, len(subject.schema.classes or ()))
    else:
        made = load_function(options.model)()
    if isinstance(made, nn.Module):
        learner = learner_of(made, device, options)
        loss = batch_loss if subject.task is None else task_loss(subject.task)
        return lambda batch: learner.step([batch], loss)
    if not callable(made):
        raise BenchError(
            f"{options.model}() returned {type(made).__name__}, expected a torch module, or a "
            "callable that takes a batch and trains on it"
        )
    if options.amp or options.compile or options.channels_last:
        raise OptionError(
            f"{options.model}() returned a callable that trains on a batch itself: amp, "
            "compile and channels_last do not apply to it"
        )
    return made  # type: ignore[no-any-return]


def image_model(options: Options, classes: int) -> nn.Module:
    """Returns an image model by name, or the module that a user's function returns.

    Args:
        options: the model and the size of its images.
        classes: number of classes; 0 if unknown.

    Raises:
        OptionError: there is no such model, or it does not take images of this size.
        BenchError: the function returns no torch module.
    """
    assert options.model is not None
    if options.model_by_name:
        check_model(options, "images")
        try:
            return IMAGE_MODELS[options.model](classes or 1000, options.size)
        except ValueError as error:
            raise OptionError(f"--size {options.size}: {error}") from error
    made = load_function(options.model)()
    if not isinstance(made, nn.Module):
        raise BenchError(f"{options.model} did not return a torch module, which epochs= needs")
    return made


def load_function(name: str) -> Any:
    """Returns the function named by "module:function", also from the working directory.

    Raises:
        OptionError: there is no such function.
    """
    found = load_named(name)
    if not callable(found):
        raise OptionError(f"{name} is not a function")
    return found


def learner_of(
    model: nn.Module, device: torch.device, options: Options, lr: float = _LEARNING_RATE
) -> Learner:
    """Returns a Learner with a constant learning rate.

    Raises:
        OptionError: `channels_last` was requested for a model with lazy layers.
    """
    if options.channels_last and any(is_lazy(weights) for weights in model.parameters()):
        raise OptionError(
            "channels_last cannot be applied to lazy layers, which have no weights yet: create "
            "the layers with their sizes"
        )
    learner = Learner(model, train_options(options, device), Process(device), lr)
    # `Learner` does not set the training mode, because the loop of `fit` does.
    learner.called.train()
    return learner


def train_options(options: Options, device: torch.device) -> TrainOptions:
    """Returns the options of fastio.train: one epoch with a constant learning rate."""
    return TrainOptions(
        data=options.data,
        epochs=1,
        schedule="constant",
        warmup=0.0,
        device=str(device),
        amp=options.amp,
        compile=options.compile,
        channels_last=options.channels_last,
        seed=options.seed,
    )


def task_loss(task: Task) -> Loss:
    """Returns the mean loss of a task of fastio.train on a batch."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        some = first_tensor(batch)
        assert some is not None
        return task.step(model, batch, len(some)).loss / task.count(batch, len(some))

    return loss


def batch_loss(model: nn.Module, batch: Any) -> Tensor:
    """Returns the loss of any model on a batch.

    For a batch (inputs, labels) with int64 labels (N,) this is the cross-entropy, if the model
    returns logits (N, classes). For any other batch it is the mean of the model's output. A batch
    that is a dict is passed to the model as it is.
    """
    inputs, labels = inputs_and_labels(batch)
    output: Tensor = model(inputs)
    if labels is not None and output.ndim == 2:
        return nn.functional.cross_entropy(output.float(), labels)
    return output.float().mean()


def inputs_and_labels(batch: Any) -> tuple[Any, Tensor | None]:
    """Returns the inputs of a batch, and its int64 labels (N,) or None."""
    inputs, *others = batch if isinstance(batch, (tuple, list)) else [batch]
    labels = others[0] if others else None
    known = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1
    return inputs, labels if known else None


# --- A model or an emulated accelerator -----------------------------------------------------------

_WARM_UP_STEPS = 4


def model_device(options: Options) -> torch.device:
    """Returns the device of the model: the requested one; by default a GPU if there is one.

    Raises:
        OptionError: torch finds no such device.
    """
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = resolve_device(name)
    except RuntimeError as error:
        raise OptionError(f"the device {name!r} cannot be used: {error}") from error
    assert device is not None
    return device


@dataclass(frozen=True)
class Compute:
    """Makes devices with the same settings.

    Attributes:
        options: the options of the bench.
        preset: the preset that is emulated; None if only a rate was given, or a model computes.
        rate: samples per second of the emulated accelerator; None if a model computes.
        device: device of the model; None without a model.
        step: training step of the model; None without a model.
    """

    options: Options
    preset: Preset | None = None
    rate: float | None = None
    device: torch.device | None = None
    step: TrainStep | None = None

    @classmethod
    def of(cls, options: Options, subject: Subject) -> tuple[Compute, Subject]:
        """Returns the compute and the subject, with the transforms and layout that the model needs.

        Raises:
            OptionError: there is no such model, or no such device.
        """
        if options.model is None:
            preset = options.emulated
            if preset is None and options.rate is None:
                images = bool(subject.schema.image_fields)
                preset = PRESETS["resnet50-h100" if images else "dlrm-b200"]
            rate = options.rate if preset is None else preset.rate
            return cls(options, preset, rate), subject
        device = model_device(options)
        # If the loader has no device, the loop copies the batches itself and waits: see
        # `CudaModel`.
        delivered = None if options.blocking_copies else device
        subject = replace(subject, normalized=True, device=delivered)
        return cls(options, device=device, step=load_step(subject, device)), subject

    def warm_up(self, batches: list[tuple[Any, int]]) -> None:
        """Runs steps that are not measured, in which code is compiled and kernels are chosen.

        Args:
            batches: (batch, number of samples) of some batches on the device.
        """
        if self.step is None:
            return
        # torch.compile and cuDNN compile code and try algorithms during the first steps.
        more = self.on_gpu or self.options.compile
        device = self.new(resident=True)
        for batch, samples in islice(cycle(batches), _WARM_UP_STEPS if more else 1):
            device.step(batch, samples)
        device.wait()

    def backends(self) -> AbstractContextManager[None]:
        """Sets PyTorch's backends for speed, as fastio.train does, while a model computes."""
        if self.device is None:
            return nullcontext()
        return backends(train_options(self.options, self.device), Process(self.device))

    @property
    def on_gpu(self) -> bool:
        """Whether a model computes on a CUDA device."""
        return self.device is not None and self.device.type == "cuda"

    @property
    def asynchronous(self) -> bool:
        """Whether the device computes in parallel with the loop."""
        return self.rate is not None or self.on_gpu

    @property
    def au_target(self) -> float:
        """The accelerator utilisation that MLPerf Storage requires."""
        return 0.9 if self.preset is None else self.preset.au

    def new(self, *, resident: bool = False) -> Device:
        """Returns a new device; with `resident`, its batches are on it already."""
        waits = self.options.blocking_copies
        if self.rate is not None:
            return EmulatedAccelerator(self.rate, None if resident else self.options.bus, waits)
        assert self.step is not None
        assert self.device is not None
        if self.on_gpu:
            return CudaModel(self.step, self.device, waits and not resident)
        return CpuModel(self.step)
