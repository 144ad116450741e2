"""One rung of a ladder, in processes of its own.

Run as `python -m fastio.diagnose.bench.rung RECIPE RESULT`.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from fastio.diagnose.bench.baseline import PillowFolder
from fastio.diagnose.bench.recipes import Recipe
from fastio.diagnose.bench.subject import image_steps
from fastio.diagnose.bench.training import top1
from fastio.loader import Loader
from fastio.train.models import IMAGE_MODELS
from fastio.train.options import Options
from fastio.train.parallel import Place, autocast, processes, wrap
from fastio.train.run import backends

_LEARNING_RATE = 3e-3
_WARM_UP_STEPS = 3  # in which workers start and the model is compiled


def train(recipe: Recipe) -> dict[str, float]:
    """Trains as the recipe says.

    Returns:
        "epoch_s": seconds of an epoch, the mean; "images": of an epoch; "accuracy": top-1.
    """
    options = Options(
        data=recipe.data,
        amp="bf16" if recipe.amp else None,
        compile=recipe.compile,
        channels_last=recipe.channels_last,
        device=recipe.device,
    )
    with processes(options) as place, backends(options, place), _batches(recipe, place) as batches:
        torch.manual_seed(recipe.seed)
        model = _model(recipe, classes_of(recipe.data)).to(place.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = copy.deepcopy(model.state_dict())
        trainer = _Trainer(recipe, options, place, wrap(model, place, options), len(batches))
        trainer.steps(islice(iter(batches), _WARM_UP_STEPS))
        model.load_state_dict(weights)
        trainer.begin()
        if isinstance(batches, Loader):
            batches.set_epoch(0)
        started = time.perf_counter()
        for _ in range(recipe.epochs):
            trainer.steps(iter(batches))
        seconds = time.perf_counter() - started
        images = len(batches) * recipe.batch_size
        accuracy = 0.0
        if place.main:
            accuracy = top1(model, recipe.val, recipe.size, recipe.batch_size, place.device)
        return {"epoch_s": seconds / recipe.epochs, "images": images, "accuracy": accuracy}


def classes_of(data: str) -> int:
    """How many classes an image folder, or a packed one, has."""
    with Loader(data) as loader:
        return len(loader.dataset.schema.classes or ())


class _Trainer:
    """Steps of AdamW, whose learning rate rises and falls over all epochs."""

    def __init__(
        self, recipe: Recipe, options: Options, place: Place, called: nn.Module, steps: int
    ) -> None:
        self._recipe, self._options, self._place, self._called = recipe, options, place, called
        self._steps = steps * recipe.epochs
        self.begin()

    def begin(self) -> None:
        """Forgets all steps."""
        self._optimizer = torch.optim.AdamW(self._called.parameters(), _LEARNING_RATE)
        total = max(self._steps, _WARM_UP_STEPS) + 1
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, _LEARNING_RATE, total_steps=total
        )

    def steps(self, batches: Iterator[Any]) -> None:
        """One step a batch; waits for the device in the end."""
        device = self._place.device
        self._called.train()
        for images, labels in batches:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            if self._recipe.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            with autocast(device, self._options):
                loss = nn.functional.cross_entropy(self._called(images), labels)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._schedule.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _model(recipe: Recipe, classes: int) -> nn.Module:
    if ":" in recipe.model:
        from fastio.diagnose.bench.models import load_function

        model: nn.Module = load_function(recipe.model)()
        return model
    return IMAGE_MODELS[recipe.model](classes, recipe.size)


@contextmanager
def _batches(recipe: Recipe, place: Place) -> Iterator[Any]:
    """The loader of full shuffled batches (images float32 (n, 3, size, size), labels (n,))."""
    batch_size = recipe.batch_size // recipe.processes
    if recipe.torch_loader:
        yield DataLoader(
            PillowFolder(recipe.data, recipe.size, normalized=True),
            batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=recipe.workers,
            persistent_workers=recipe.workers > 0,
            pin_memory=recipe.pin_memory,
        )
        return
    with Loader(
        recipe.data,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=max(1, recipe.workers // recipe.processes),
        transforms=image_steps(recipe.size, normalized=True),
        device=place.device if recipe.prefetch else None,
        seed=recipe.seed,
        distributed=True,
        channels_last=recipe.channels_last,
    ) as loader:
        yield loader


def main() -> None:
    """Trains the recipe in the first file, writes the result to the second."""
    recipe = Recipe.read(sys.argv[1])
    result = train(recipe)
    if int(os.environ.get("RANK", "0")) == 0:
        Path(sys.argv[2]).write_text(json.dumps({"name": recipe.name, **result}))


if __name__ == "__main__":
    main()
