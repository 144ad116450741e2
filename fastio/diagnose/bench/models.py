"""Models by name: fastio.train's, or a function of the user's."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from fastio.diagnose.bench.device import TrainStep
from fastio.diagnose.bench.options import Options
from fastio.diagnose.bench.subject import Subject
from fastio.diagnose.bench.trainee import Trainee, batch_loss, task_loss
from fastio.errors import BenchError
from fastio.train.models import IMAGE_MODELS


def load_step(subject: Subject, device: torch.device) -> TrainStep:
    """A training step with the model that was asked for, which is put on the device.

    Raises:
        BenchError: there is no such model, or it does not take this kind of data.
    """
    options = subject.options
    if options.model_by_name:
        return load_trainee(subject, device).step
    assert options.model is not None
    made = load_function(options.model)()
    if isinstance(made, nn.Module):
        return Trainee(made, device, options, batch_loss).step
    if not callable(made):
        raise BenchError(
            f"{options.model}() returned {type(made).__name__}: a torch module is wanted, or a "
            "callable that takes a batch and trains on it"
        )
    if options.amp or options.compile or options.channels_last:
        raise BenchError(
            f"{options.model}() returned a callable that trains on a batch itself: amp, compile "
            "and channels_last are its own matter"
        )
    step: TrainStep = made
    return step


def load_trainee(subject: Subject, device: torch.device, learning_rate: float = 1e-4) -> Trainee:
    """The model that was asked for, ready for the first step.

    Raises:
        BenchError: there is no such model, it does not take this size, or it is no torch module.
    """
    options = subject.options
    assert options.model is not None
    if not options.model_by_name:
        made = load_function(options.model)()
        if not isinstance(made, nn.Module):
            raise BenchError(f"{options.model} returns no torch module, which epochs= needs")
        return Trainee(made, device, options, batch_loss, learning_rate)
    if subject.task is not None:
        loss = task_loss(subject.task)
        return Trainee(subject.task.model(), device, options, loss, learning_rate)
    check_image_model(options)
    try:
        model = IMAGE_MODELS[options.model](classes_of(subject), options.size)
    except ValueError as error:
        raise BenchError(f"--size {options.size}: {error}") from error
    return Trainee(model, device, options, batch_loss, learning_rate)


def check_image_model(options: Options) -> None:
    """Refuses a name that no model of images has.

    Raises:
        BenchError: there is no such model.
    """
    if options.model_by_name and options.model not in IMAGE_MODELS:
        raise BenchError(
            f"there is no model {options.model!r} of images; there are "
            f"{', '.join(sorted(IMAGE_MODELS))}; or give MODULE:FUNCTION, a function that returns "
            "a torch module"
        )


def load_function(name: str) -> Any:
    """The function behind "module:function"; the working directory's modules count.

    Raises:
        BenchError: there is none.
    """
    import os
    import sys

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BenchError(f"{name} reads like MODULE:FUNCTION and is none: {error}") from error
    if not callable(found):
        raise BenchError(f"{name} is no function")
    return found


def classes_of(subject: Subject) -> int:
    """How many classes the labels have; 1,000 where that is not known."""
    return len(subject.schema.classes or ()) or 1000
