"""Models by name: fastio.train's, or a function of the user's."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from fastio.bench.device import TrainStep, train_step
from fastio.bench.subject import Subject
from fastio.errors import BenchError


def load_model(subject: Subject) -> nn.Module | None:
    """The model that was asked for, on the CPU; None where a function takes whole steps itself.

    Raises:
        BenchError: there is no such model, or it does not take this kind of data.
    """
    name = subject.options.model
    assert name is not None
    if ":" in name:
        made = load_function(name)()
        return made if isinstance(made, nn.Module) else None
    from fastio.train.models import IMAGE_MODELS, TABULAR_MODELS

    if subject.schema.image_fields and name in IMAGE_MODELS:
        return IMAGE_MODELS[name](classes_of(subject), subject.options.size)
    known = sorted(IMAGE_MODELS)
    if name in TABULAR_MODELS:
        raise BenchError(
            f"{name} needs to know which columns are what: give --model MODULE:FUNCTION, a "
            "function that returns it"
        )
    raise BenchError(
        f"there is no model {name!r} for this data; of images there are {', '.join(known)}; or "
        "give MODULE:FUNCTION, a function that returns a torch module"
    )


def load_step(subject: Subject, device: torch.device) -> TrainStep:
    """A training step with the model that was asked for, which is put on the device."""
    name = subject.options.model
    assert name is not None
    if ":" in name:
        made = load_function(name)()
        if not isinstance(made, nn.Module):
            if not callable(made):
                raise BenchError(
                    f"{name}() returned {type(made).__name__}: a torch module is wanted, or a "
                    "callable that takes a batch and trains on it"
                )
            step: TrainStep = made
            return step
        return train_step(made.to(device))
    model = load_model(subject)
    assert model is not None
    return train_step(model.to(device, memory_format=torch.channels_last))  # type: ignore[call-overload]


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
